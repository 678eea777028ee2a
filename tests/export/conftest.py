"""A model that has every layer of the package, and batches for it."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.core import scorer_programs
from twml_ops import layers
from twml_ops.core import Scorer
from twml_ops.export.raw_columns import RawColumns
from twml_ops.models import HashedIds

N = 60


def batch(rows=7, seed=0):
    """ids and values, ragged; row 0 is empty, ids repeat, one value is missing."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, rows)
    lengths[0] = 0
    total = int(lengths.sum())
    ids = rng.integers(0, N, total)
    values = rng.normal(size=total).astype(np.float32)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    return ids, values, splits


def ragged(ids, values, splits):
    return tuple(tf.RaggedTensor.from_row_splits(x, splits) for x in (ids, values))


def build(partitions=1, axis="row", units=4):
    """Discretized, hashed and normalized views of one batch of features, summed."""
    tf.keras.utils.set_random_seed(0)
    adapted = ragged(*batch(40, seed=1))
    inputs = [
        tf.keras.Input([None], dtype=t, ragged=True, name=n)
        for t, n in (("int64", "f_ids"), ("float32", "f_values"))
    ]
    percentile = layers.PercentileDiscretizer(5, pass_through_bits=6)
    hashing = layers.HashingDiscretizer(7, 4, unknown="drop")
    for layer in (percentile, hashing):
        layer.adapt(adapted)
    norm = layers.MaxNorm(N, bias_initializer="random_normal")
    split = {"num_partitions": partitions, "partition_axis": axis}
    hashed = HashedIds(6)
    parts = [
        layers.SparseLinear(units, percentile.output_dim, **split)(percentile(inputs)),
        layers.SparseLinear(units, hashing.output_dim, use_bias=False)(hashing(inputs)),
        layers.SparseLinear(units, hashed.output_dim)(hashed(inputs[0])),
        layers.SparseLinear(units, N, activation="tanh")(norm(inputs)),
    ]
    hidden = tf.keras.layers.Activation("relu")(tf.keras.layers.Add()(parts))
    hidden = tf.keras.layers.Dropout(0.5)(hidden)
    hidden = tf.keras.layers.Dense(3, activation="gelu")(hidden)
    out = tf.keras.layers.Dense(1, activation="sigmoid", name="probability")(hidden)
    model = tf.keras.Model(inputs, out)
    # As trained: maxima that clip some values and bound others.
    maxima = np.random.default_rng(2).random(N).astype(np.float32) * 2
    norm.max_abs.assign(maxima)
    return model


def scorer_of(folder, schema):
    """A scorer of raw columns that returns an embedding of the ids of their categories."""
    example, table = scorer_programs.Example(), scorer_programs.tables(1 << 12, 4, "float32")
    ids, _, splits = example.batch("categorical", 1 << 40, values=False)
    example.step("hash_ids", [ids], ["#i"], bits=12)
    example.step("sparse_linear", ["#i", None, splits], ["#0"], table)
    example.write(folder)
    program = json.loads((folder / "scorer.json").read_text())
    program["raw"] = RawColumns(schema, "ragged").to_json()
    (folder / "scorer.json").write_text(json.dumps(program))
    return Scorer.load(folder)


@pytest.fixture(scope="session")
def model():
    return build()
