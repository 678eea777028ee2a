"""Tests of rows that are given to ids on servers, run by test_one_process.py in a child process."""

import json
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.exchange_child_tests import messages
from tests.distribute.parameter_server.model import CAPACITY, dynamic_model, id_batches, same
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    child_test,
    expect_error,
    first_servers,
    train_alone,
    trainer,
)
from twml_ops import export, layers, optimizers
from twml_ops.checkpoint import CheckpointManager
from twml_ops.core import Scorer
from twml_ops.distribute.parameter_server import ChiefBuiltModel, SavedSlots, iter_checkpoints

CLIPPED = partial(optimizers.SGD, 0.1, clipnorm=1.0)
OPTIONS = {
    "lru": {},
    "admission": {"min_count": 3, "sketch_width": 64},
    "lfu": {"eviction": "lfu", "seed": 5},
    "age": {"eviction": "age", "max_age": 2},
    "none": {"eviction": "none"},
    "two uses": {"uses": 2},
    "bfloat16": {"kernel_dtype": "bfloat16"},
}


def lookup_model():
    """A table whose rows keep their weights when they get new ids, and a table of another layer."""
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    rows = layers.DynamicLookup(CAPACITY, pinned_lookups=2)(inputs)
    hidden = layers.SparseLinear(4, CAPACITY, use_bias=False)(rows)
    hidden += layers.SparseLinear(4, 100, use_bias=False, out_of_range="wrap")(inputs)
    return tf.keras.Model(inputs, hidden)


@child_test
def rows_of_ids_are_the_rows_of_a_single_process():
    for name, options in OPTIONS.items():
        build = partial(dynamic_model, False, **options)
        make = partial(optimizers.Adagrad if name != "lfu" else optimizers.LazyAdam, 0.1)
        want = train_alone(make(), build, loss="mse", batches=id_batches())
        servers, axis = (2, "column") if name in ("lru", "two uses") else (1, "row")
        hybrid = trainer(make(), servers, build, "mse", partition_axis=axis)
        hybrid.fit(lambda _: id_batches(), 10)
        got = hybrid.export().get_weights()
        same(*([np.asarray(w).astype("d") for w in ws] for ws in (want, got)))  # not bfloat16
    want = train_alone(optimizers.SGD(0.1), lookup_model, loss="mse", batches=id_batches())
    hybrid = trainer(optimizers.SGD(0.1), 2, lookup_model, "mse", partition_axis="column")
    hybrid.fit(lambda _: id_batches(), 10)
    same(want, hybrid.export().get_weights())


@child_test
def a_step_with_rows_of_ids_has_two_more_messages():
    for build, more in ((dynamic_model, 2), (partial(dynamic_model, uses=2), 4), (lookup_model, 2)):
        hybrid = trainer(optimizers.Adagrad(0.1), build=build, loss="mse", partition_axis="row")
        hybrid.fit(lambda _: id_batches(), 1)
        sent = messages(hybrid)
        assert len(sent) == 3 * 2 + more, sent


@child_test
def rows_of_ids_by_row_differ_in_the_order_of_additions_only():
    build = partial(dynamic_model, min_count=2, uses=2)

    def make():  # the name of a table is the one that it has in one process
        return optimizers.CompositeOptimizer(
            optimizers.SGD(0.1), {"^ids/.*kernel": optimizers.LazyAdam(0.1)}
        )

    want = train_alone(make(), build, batches=id_batches())
    hybrid = trainer(make(), 3, build, partition_axis="row", steps_per_execution=4)
    hybrid.fit(lambda _: id_batches(), 10)
    unseen = [([ids + 1, values], y) for (ids, values), y in id_batches(2)]
    loss = hybrid.evaluate(unseen)["loss"]  # which gives no rows
    exported = hybrid.export()
    x, y = (
        tf.nest.map_structure(lambda *t: tf.concat(t, 0), *parts)
        for parts in zip(*unseen, strict=True)
    )
    plain = tf.keras.losses.BinaryCrossentropy()(y, exported(x))
    np.testing.assert_allclose(loss, float(plain), rtol=1e-5)
    got = exported.get_weights()
    same(want, got, 5e-6)
    same(*([w for w in ws if w.dtype != np.float32] for ws in (want, got)))


@child_test
def what_cannot_work_with_rows_of_ids_is_refused_before_a_server_has_a_value():
    for message, options in (
        ("without clipnorm", {"cluster": TWO_WORKERS, "mode": "async", "make": CLIPPED}),
        ("pipeline=False", {"pipeline": True}),
        ("exchange_every=1", {"exchange_every": 2}),
        ("kernel_regularizer None", {"build": partial(dynamic_model, kernel_regularizer="l2")}),
    ):
        options = {"build": dynamic_model, **options}
        make = options.pop("make", partial(optimizers.Adagrad, 0.1))
        hybrid = trainer(make(), **options)
        expect_error(ValueError, message, lambda hybrid=hybrid: hybrid.build(id_batches()[0]))
        assert hybrid.state is None


@child_test
def rows_of_ids_come_back_from_checkpoints_on_another_number_of_servers():
    """With changed rows as well as with all rows, and as ordinary models."""
    make, build = partial(optimizers.RowWiseAdagrad, 0.1), partial(dynamic_model, min_count=2)
    want = train_alone(make(), build, batches=id_batches())
    for policy in ("full", "consecutive"):
        with tempfile.TemporaryDirectory() as folder:
            options = {"checkpoint_dir": folder, "checkpoint_every": 2, "build": build}
            options["checkpoint_policy"] = policy
            for servers, steps in ((3, 5), (1, 8), (2, 10)):
                hybrid = trainer(make(), servers, partition_axis="row", **options)
                assert hybrid.fit(lambda _: id_batches(), steps).step == steps
            exported = hybrid.export().get_weights()
            same(want, exported, 5e-6)
            same(*([w for w in ws if w.dtype != np.float32] for ws in (want, exported)))
            step, model = next(iter_checkpoints(build, folder))
            assert step == 10
            same(exported, model.get_weights())
            options["build"] = dynamic_model
            other = trainer(make(), 2, **options)
            expect_error(ValueError, "expected the lookups", partial(other.build, id_batches()[0]))


@child_test
def a_run_goes_on_with_the_rows_of_ids_of_an_ordinary_model_and_gives_them_back():
    make, both = partial(optimizers.Adagrad, 0.1), id_batches()
    want = train_alone(make(), batches=both, build=dynamic_model)
    plain = dynamic_model()
    plain.compile(make(), "binary_crossentropy", jit_compile=False)
    for x, y in both[:5]:
        plain.train_on_batch(x, y)
    with tempfile.TemporaryDirectory() as folder:
        built = ChiefBuiltModel(
            lambda: plain, f"{folder}/model.keras", cluster=first_servers(2), with_tables=True
        )
        slots = SavedSlots(5, lambda: plain)
        hybrid = trainer(make(), 2, built, partition_axis="row", saved_slots=slots)
        hybrid.fit(lambda _: (both * 2)[5:10], 5)
        exported = hybrid.export()
    same(want, exported.get_weights(), 2e-6)
    exported.compile(make(), "binary_crossentropy", jit_compile=False)
    exported.optimizer.build(exported.trainable_variables)
    hybrid.export_slots(exported)
    x, y = both[2]
    exported.train_on_batch(x, y)
    same(train_alone(make(), dynamic_model, 11, batches=both), exported.get_weights(), 2e-6)


@child_test
def an_id_that_servers_have_evicted_is_answered_like_an_unknown_one_by_the_next_version():
    """The versions are published from checkpoints, the later ones as changed rows of the first."""
    capacity, unknown = 20_000, -7
    new = 10**12 + np.arange(5)
    probe = np.array([*range(12), capacity - 2, *new, unknown])

    def build():
        tf.keras.utils.set_random_seed(2)
        ids = tf.keras.Input([None], dtype="int64", ragged=True, name="x_ids")
        hidden = layers.DynamicSparseLinear(16, capacity, bias_initializer="ones")(ids)
        return tf.keras.Model(ids, tf.keras.layers.Dense(1)(hidden))

    def ragged(ids):
        return tf.RaggedTensor.from_uniform_row_length(tf.constant(ids, tf.int64), 1)

    trained = [np.arange(10), np.arange(10, capacity - 1), new]
    with tempfile.TemporaryDirectory() as folder:
        served, saved = Path(folder, "served"), Path(folder, "checkpoints")
        hybrid = trainer(
            optimizers.Adagrad(0.1), 2, build, "mse", checkpoint_dir=saved, partition_axis="row"
        )
        found = iter_checkpoints(build, saved)
        publisher, lost = None, []
        for number, steps in enumerate((2, 3, 4), 1):
            batches = [(ragged(ids), np.ones([len(ids), 1], "f")) for ids in trained]
            hybrid.fit(lambda _, batches=batches: batches, steps, begin=0)
            step, model = next(found)
            publisher = publisher or export.ScorerPublisher(model, served)
            publisher.publish_model(step)
            want = model(ragged(probe), training=False).numpy()
            scorer = Scorer.load(served / str(number))
            got = scorer.predict(probe, row_splits=np.arange(len(probe) + 1))
            same(want, got, 1e-5)
            lost.append({i for i, s in zip(probe.tolist(), got[:, 0], strict=True) if s == got[-1]})
            trained.append(np.array(sorted(lost[-1] - {unknown})))
            assert (number == 1) == ("base" not in json.loads(scorer_text(served, number)))
        assert lost[0] == {*new.tolist(), unknown}
        assert len(lost[1]) == len(new) + 1
        assert lost[1] < {*range(10), unknown}, lost
        assert not lost[2] & set(trained[3].tolist())
        newest = CheckpointManager(saved).latest()
        expect_error(ValueError, "of a cluster", partial(publisher.publish, newest))
        shutil.rmtree(served / "1")
        expect_error(ValueError, "cannot be opened", partial(Scorer.load, served / "3"))


def scorer_text(served, number):
    return (served / str(number) / "scorer.json").read_text()
