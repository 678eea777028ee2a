"""What a batch asks of the tables of a model, and that a plan from it is one of these tables."""

import json

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers, research
from twml_ops.distribute import HybridTrainer
from twml_ops.distribute.parameter_server.table_plan import sizes_of_tables
from twml_ops.planning import ClusterResources, Job, Table, shard

pytestmark = pytest.mark.one_tf
BATCH, FIELDS = 6, 3


def model():
    """A table of sums, one that is used twice, and one of vectors of fields."""
    ids = tf.keras.Input([None], dtype="int64", ragged=True)
    fields = tf.keras.Input([FIELDS], dtype="int64")
    twice = layers.SparseLinear(2, 50, name="twice")
    sums = layers.SparseLinear(4, 100, name="sums")(ids)
    vectors = layers.FieldEmbedding([10] * FIELDS, 8, name="fields")(fields)
    flat = tf.keras.layers.Flatten()(vectors)
    joined = tf.keras.layers.Concatenate()([sums, twice(ids), twice(ids), flat])
    return tf.keras.Model([ids, fields], tf.keras.layers.Dense(1)(joined))


def batch():
    rng = np.random.default_rng(0)
    ids = tf.RaggedTensor.from_row_lengths(
        tf.constant([7, 7, 3, 7, 9, 3, 7, 1, 7], tf.int64), [0, 4, 1, 0, 3, 1]
    )
    return ids, tf.constant(rng.integers(0, 9, [BATCH, FIELDS]))


def test_the_sizes_are_counted_in_the_batch():
    ids, fields = batch()
    found = sizes_of_tables(model, (ids, fields))
    assert found["sums/kernel"] == Table(100, 4, 9 / BATCH, unique=4, outputs=4)
    twice = found["twice/kernel"]  # each use has its entries, and its outputs
    assert (twice.entries, twice.outputs) == (18 / BATCH, 4)
    (vectors,) = (table for name, table in found.items() if name.startswith("fields/"))
    assert (vectors.units, vectors.entries, vectors.outputs) == (8, FIELDS, FIELDS * 8)
    rows = {(f, int(row)) for f, column in enumerate(fields.numpy().T) for row in column}
    assert vectors.unique == len(rows)
    assert len(found) == 3


def test_a_table_without_entries_can_be_planned():
    _, fields = batch()
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int64), [0] * BATCH)
    found = sizes_of_tables(model, (empty, fields))
    assert found["sums/kernel"] == Table(100, 4, 1 / BATCH, unique=1, outputs=4)


def test_a_tower_has_the_entries_of_its_fields_and_the_outputs_of_its_module():
    def towers():
        ids = tf.keras.Input([FIELDS], dtype="int64")
        vectors = layers.FieldEmbedding([10] * FIELDS, 8, name="fields")
        return tf.keras.Model(ids, research.Tower(vectors, research.TowerModule(0.25))(ids))

    _, fields = batch()
    (tower,) = sizes_of_tables(towers, fields).values()
    assert (tower.units, tower.entries, tower.outputs) == (8, FIELDS, FIELDS * 8 // 4)
    rows = {(f, int(row)) for f, column in enumerate(fields.numpy().T) for row in column}
    assert tower.unique == len(rows)


def test_a_trainer_follows_the_plan_of_these_names(tmp_path):
    features = batch()
    found = sizes_of_tables(model, features)
    plan = shard(Job(tuple(found.values()), BATCH), ClusterResources(1e9), ways=["table"])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_json(list(found))))
    data = tf.data.Dataset.from_tensors((features, tf.ones([BATCH, 1])))
    trainer = HybridTrainer(model, optimizers.Adagrad(0.1), "mse", plan=path)
    assert trainer.fit(lambda _: data, 1).step == 1
    sizes = {table.path: tuple(table.shape) for table in trainer.placement.tables}
    assert sizes == {name: (t.input_dim, t.units) for name, t in found.items()}
