"""Tests of towers that servers compute, run by test_one_process.py in a child process."""

import tempfile
from functools import partial

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import ROWS, batches, same, towers_model, whole_batches
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    check_snapshots,
    child_test,
    expect_error,
    export_with_slots,
    plan_of,
    train_alone,
    trainer,
    weights_of_snapshots,
)
from twml_ops import layers, optimizers, research
from twml_ops.distribute.parameter_server import SavedSlots

FIELDS, UNITS = 6, 4
TOWERS = [[4, 0, 1], [5, 2, 3]]


def adam():
    return optimizers.LazyAdam(0.01, weight_decay=0.1)


def matrix_batches():
    rng = np.random.default_rng(1)
    ids = rng.integers(-1, 20, [4, 16, FIELDS])
    return [(tf.constant(x), (x[:, :1] < 6).astype("f")) for x in ids]


def vectors_model(towers):
    """The vectors of all fields, of a table for each tower; without dense weights."""
    ids = tf.keras.Input([FIELDS], dtype="int64")
    parts = []
    for i, fields in enumerate(towers):
        rows = [21 + f for f in fields]
        table = layers.FieldEmbedding(rows, UNITS, embeddings_initializer="ones", name=f"of_{i}")
        parts.append(table(tf.keras.layers.Lambda(partial(tf.gather, indices=fields, axis=1))(ids)))
    joined = parts[0] if len(parts) == 1 else tf.keras.layers.Concatenate(axis=1)(parts)
    return tf.keras.Model(ids, joined)


@child_test
def vectors_of_towers_are_the_bits_of_the_flat_lookup():
    """A plan gives each tower a server, which looks up its fields; the training is the same."""
    order = [f for fields in TOWERS for f in fields]
    plans = {1: None, 2: plan_of(2, ("table", 1), ("table", 0))}
    data = [(x, np.arange(4, dtype="f") + y[..., None]) for x, y in matrix_batches()]
    found = []
    for towers, plan in zip(([order], TOWERS), plans.values(), strict=True):
        hybrid = trainer(adam(), 2, partial(vectors_model, towers), "mse", plan=plan)
        hybrid.fit(lambda _: data, 6)
        x, y = data[0]
        found.append([hybrid._forward(x, y, None)[0].numpy(), *hybrid.export().get_weights()])
        if plan is not None:
            servers = [t.division.servers for t in hybrid.placement.tables]
            assert servers == [(1,), (0,)]
    flat, *tables = found[1]
    np.testing.assert_array_equal(flat, found[0][0])
    np.testing.assert_array_equal(np.concatenate(tables), found[0][1])
    assert len(np.unique(flat)) > 10


@child_test
def towers_on_servers_train_as_in_a_single_process():
    build = partial(towers_model, rank=2)
    hybrid = trainer(optimizers.Adagrad(0.1), 2, build)
    hybrid.fit(batches, 10)
    exported = hybrid.export()
    same(train_alone(optimizers.Adagrad(0.1), build), exported.get_weights(), 2e-5)
    before = build().get_weights()
    assert all((a != b).any() for a, b in zip(before, exported.get_weights(), strict=True))
    assert [t.shards[0].device for t in hybrid.placement.tables] == hybrid.cluster.devices
    x, y = whole_batches()[0]
    same([exported(x).numpy()], [hybrid._forward(x, y, None)[0].numpy()], 1e-6)
    (step,) = hybrid._train.traced.values()
    messages = [op for op in step.graph.get_operations() if op.type == "Twml>SendMessage"]
    shapes = [[t.shape.as_list() for t in op.inputs if t.dtype == tf.float32] for op in messages]
    # Two towers of C = 0.5 * 2 fields * 4 numbers, to the worker and back with a learning rate.
    assert shapes == [[], [], [[None, 4]], [[None, 4]], [[None, 4], [1]], [[None, 4], [1]]]


@child_test
def an_asynchronous_worker_leaves_towers_to_their_servers():
    found = []
    for more in ({"servers": 1}, {"cluster": TWO_WORKERS}):
        hybrid = trainer(optimizers.Adagrad(0.1), build=towers_model, mode="async", **more)
        hybrid.fit(lambda _: whole_batches(), 6)
        names = [s.local.name for s in hybrid.state.shared_variables]
        found.append((hybrid.export().get_weights(), names))
        assert len(hybrid.state.module_weights) == 8
    (want, none), (got, shared) = found
    assert none == []
    assert len(shared) == 2  # of the dense layer
    same(want, got, 2e-5)


@child_test
def towers_are_restored_from_checkpoints_on_other_servers():
    """With the average of the weights that was begun."""
    with tempfile.TemporaryDirectory() as folder:
        seen = []
        for servers, steps in ((1, (1, 2)), (2, (4,))):
            hybrid = trainer(adam(), servers, towers_model, checkpoint_dir=folder)
            seen += weights_of_snapshots(hybrid, steps)
        same(train_alone(adam(), towers_model, 4), seen[-1], 2e-5)
        check_snapshots(hybrid, seen, towers_model, folder, until=4)


@child_test
def slots_of_towers_go_to_an_ordinary_model_and_back():
    found, saved = [], None
    for servers in (1, 2):
        hybrid = trainer(adam(), servers, towers_model, saved_slots=saved)
        hybrid.fit(batches, 0 if found else 2)
        model, slots = export_with_slots(hybrid, adam())
        found.append(slots)
        saved = SavedSlots(2, lambda model=model: model)
    assert all(s.any() for s in found[0])
    same(*found)


@child_test
def gradients_of_towers_are_clipped_by_the_norm_of_all_gradients():
    make = partial(optimizers.SGD, 0.5, global_clipnorm=0.1)
    hybrid = trainer(make(), 2, towers_model)
    hybrid.fit(batches, 8)
    want = train_alone(make(), towers_model, 8)
    same(want, hybrid.export().get_weights(), 1e-6)
    free = train_alone(optimizers.SGD(0.5), towers_model, 8)
    assert any(np.abs(a - b).max() > 1e-2 for a, b in zip(want, free, strict=True))


def one_module_for_two_tables():
    ids = tf.keras.Input([2], dtype="int64")
    module = research.TowerModule(0.5)
    outputs = [
        research.Tower(layers.FieldEmbedding([9, 9], 2, name=f"fields_{i}"), module)(ids)
        for i in range(2)
    ]
    return tf.keras.Model(ids, tf.keras.layers.Add()(outputs))


@child_test
def what_servers_cannot_do_with_towers_is_refused_before_the_training():
    def fit(build, data, options):
        trainer(optimizers.SGD(0.1), 2, build, **options).fit(lambda _: data, 1)

    plan = plan_of(2, ("row", 0), ("table", 0))
    for message, options in (
        ("needs pipeline=False, got True", {"pipeline": True}),
        ("needs exchange_every=1, got 2", {"exchange_every": 2}),
        ("fields_0/embeddings has a tower.* expected the way table, got row", {"plan": plan}),
    ):
        arguments = towers_model, whole_batches(), options
        expect_error(ValueError, message, partial(fit, *arguments))
    shared = [(x[:, :2] % 8, y) for x, y in matrix_batches()]
    message = "fields_0/embeddings and fields_1/embeddings have one module"
    expect_error(ValueError, message, partial(fit, one_module_for_two_tables, shared, {}))


@child_test
def the_output_of_a_tower_has_the_precision_of_its_module_as_in_a_single_process():
    def build():
        tf.keras.utils.set_random_seed(3)
        ids = tf.keras.Input([2], dtype="int64")
        vectors = layers.FieldEmbedding([ROWS + 1] * 2, 4, embeddings_initializer="normal")
        tower = research.Tower(vectors, research.TowerModule(0.5), dtype="mixed_bfloat16")
        return tf.keras.Model(ids, tower(ids))

    ids = np.arange(32).reshape(16, 2)
    batch = tf.constant(ids), ids[:, :1].astype("f") / 32
    hybrid = trainer(optimizers.Adagrad(0.1), 2, build, "mse")
    hybrid.fit(lambda _: [batch], 3)
    want = train_alone(optimizers.Adagrad(0.1), build, 3, "mse", [batch] * 3)
    same(want, hybrid.export().get_weights(), 2e-6)
