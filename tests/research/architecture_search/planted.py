"""Small data with a known best architecture."""

import numpy as np
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.research.architecture_search import DenseWidth, SearchSpace

SCHEMA = Schema((), ("a", "b", "noise"), 0, "x")
NUMBERS = Schema(("n", "m"), ("a", "b"), 30, "x", labels=("click", "sale"))


def data_of(schema=SCHEMA, rows=512, batch=64, seed=0):
    """The label is whether two categories are on the same side."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 8, (rows, len(schema.fields)))
    features = {"categorical": tf.constant(ids * 10**12)}
    if schema.continuous:
        features["continuous"] = tf.constant(rng.normal(size=(rows, 2)).astype(np.float32))
        features["continuous_present"] = tf.constant(rng.random((rows, 2)) < 0.8)
    if schema.sparse_dim:
        sparse = tf.RaggedTensor.from_row_lengths(
            tf.constant(rng.integers(0, schema.sparse_dim, 3 * rows)), [3] * rows
        )
        features["sparse_ids"] = sparse
        features["sparse_values"] = tf.ones_like(sparse, tf.float32)
    y = ((ids[:, 0] < 4) == (ids[:, 1] < 4)).astype(np.float32)[:, None]
    labels = {n: y for n in schema.labels} if len(schema.labels) > 1 else y
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch)


def small_space(**options):
    """Few candidates of every kind."""
    arguments = {
        "field_units": (1, 2, 4),
        "max_rows": (2, 6),
        "interactions": ("dot",),
        "dense": [DenseWidth("hidden_0", (2, 4), 0.0), DenseWidth("hidden_1", (0, 3, 5), 0.0)],
        "units": 4,
        "outputs": 2,
        "bottom": (3,),
        "embedding_dropout": 0.0,
        "l2": 0.0,
        "linear_l2": 0.0,
    }
    return SearchSpace(**{**arguments, **options})
