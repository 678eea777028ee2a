"""Tests of rows of ids of asynchronous workers, run by test_one_process.py in a child process."""

import tempfile
from functools import partial

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import CAPACITY, same
from tests.distribute.parameter_server.trainers import (
    Stop,
    asynchronous_workers,
    child_test,
    expect_error,
    step_with,
)
from twml_ops import layers, optimizers
from twml_ops.distribute.parameter_server import ClusterError, iter_checkpoints

UNITS = 4


def build(stops=False, uses=1, **options):
    tf.keras.utils.set_random_seed(3)
    ids = tf.keras.Input([None], dtype="int64", ragged=True)
    layer = layers.DynamicSparseLinear(UNITS, CAPACITY, use_bias=False, name="ids", **options)
    hidden = layer(ids)
    if uses == 2:
        hidden = hidden + layer(ids + 1000)
    return tf.keras.Model(ids, Stop(name="stop")(hidden) if stops else hidden)


def batch(ids):
    ids = np.reshape(ids, [-1, 1])
    return tf.RaggedTensor.from_tensor(tf.constant(ids, tf.int64)), np.ones([len(ids), UNITS], "f")


def workers(stops=False, servers=2, uses=1, min_count=1, **options):
    """Two asynchronous workers of one run; if `stops`, the first one stops in each step."""
    model = {"uses": uses, "min_count": min_count}
    builds = [partial(build, stop, **model) for stop in (stops, False)]
    make = partial(optimizers.Adagrad, 0.5)
    return asynchronous_workers(builds, make, batch([0]), servers, loss="mse", **options)


def step(hybrid, ids):
    """A step of a worker, with a batch of these ids."""
    step_with(hybrid, batch(ids))


def look_up_and_die(hybrid, ids):
    """Gives rows to ids, as a worker does that is killed before it sends its batch."""
    (lookup,) = hybrid.state.lookups
    link = hybrid.placement.links[lookup.number]
    ids = np.array(ids)
    tf.function(lambda: lookup.find(tf.constant(ids), True, link), autograph=False)()


def table_of(hybrid):
    """The rows of the ids, their slots, and the ids of the rows."""
    (table,) = hybrid.state.tables
    slots = table.division.merge([s[0].fetch() for s in table.slots], table.shape)
    keys = table.lookup.variables["keys"].fetch()
    return [t.numpy() for t in (table.fetch(), slots, keys)]


def initial_rows(hybrid):
    (table,) = hybrid.state.tables
    return table.lookup.initial_rows_of(tf.range(CAPACITY, dtype=tf.int64)).numpy()


@child_test
def a_late_gradient_does_not_reach_the_next_id_of_a_row():
    """Of two ids of a batch, one loses its row to another id while the gradient is on its way."""
    first, second = workers(stops=True, partition_axis="row")
    stop = first.model.get_layer("stop")
    stop.go.enqueue(0.0)
    step(first, [1, 2])
    late = stop.step_until_there(first, batch([1, 2]))
    for i in range(1, 4):  # all rows get other ids, except the one of id 1
        step(second, [1, *range(i * 100, i * 100 + CAPACITY // 2)])
    before = table_of(second)
    stop.go.enqueue(0.0)
    late.join()
    after = table_of(first)
    same(before[-1:], after[-1:])
    (row,) = np.flatnonzero(after[-1] == 1)
    assert 2 not in after[-1]
    for old, new in zip(before[:2], after[:2], strict=True):
        assert np.flatnonzero((old != new).any(axis=1)).tolist() == [row]


@child_test
def rows_that_a_dead_worker_gave_to_ids_begin_anew_in_the_next_step_of_another_one():
    first, second = workers(partition_axis="row")
    for i in range(3):
        step(first, range(i * 10, i * 10 + 10))
    look_up_and_die(second, range(500, 505))
    rows, slots, keys = table_of(first)
    given = np.isin(keys, range(500, 505))
    assert given.sum() == 5
    assert (rows[given] != initial_rows(first)[given]).all(axis=1).any()
    step(first, [25])
    rows, slots, keys = table_of(first)
    same([initial_rows(first)[given], np.full_like(slots[given], 0.1)], [rows[given], slots[given]])


@child_test
def a_row_begins_anew_once_whichever_message_comes_first():
    first, second = workers(partition_axis="column")
    lookup = first.state.tables[0].lookup
    step(first, range(10))
    late = lookup.shared.recent.fetch().numpy()
    assert len(late) == 1 + 10
    for _ in range(2):
        step(second, range(10))
    assert (
        len(lookup.shared.recent.fetch()) == 1
    )  # they have begun, as the first step of each knows
    want = table_of(first)

    @tf.function(autograph=False)
    def begin():
        for part in range(2):
            with tf.device(first.cluster.devices[part]):
                lookup.begin_rows(part, tf.reshape(tf.constant(late), [-1]))

    begin()
    same(want, table_of(first))


@child_test
def one_of_two_asynchronous_workers_trains_as_one_process_does():
    """As long as the other does nothing; ids get rows, lose them and get others."""
    model = build(uses=2, min_count=2)
    model.compile(optimizers.Adagrad(0.5), "mse", jit_compile=False)
    first, _ = workers(uses=2, min_count=2, servers=1)
    rng = np.random.default_rng(0)
    for _ in range(12):
        ids = rng.zipf(1.5, 6)
        model.train_on_batch(*batch(ids))
        step(first, ids)
    ours, theirs = first.export().get_weights(), model.get_weights()
    pairs = [(a, b) for a, b in zip(theirs, ours, strict=True) if np.ndim(a) == 2]
    assert len(pairs) >= 2
    same(*zip(*pairs, strict=True), 2e-6)


@child_test
def a_checkpoint_has_no_row_of_another_id_whenever_it_is_written():
    with tempfile.TemporaryDirectory() as folder:
        options = {"checkpoint_dir": folder, "checkpoint_policy": "consecutive"}
        options["partition_axis"] = "row"
        first, second = workers(**options)
        for i in range(3):
            step(second, range(i * 10, i * 10 + 10))
            if i == 1:
                first.save()
        look_up_and_die(second, range(500, 505))
        rows, slots, keys = table_of(first)
        given = np.isin(keys, range(500, 505))
        first.save()
        rows[given], slots[given] = initial_rows(first)[given], 0.1
        again, _ = workers(**options, servers=3)
        same([rows, slots, keys], table_of(again))
        _, model = next(iter_checkpoints(build, folder))
        assert any(np.array_equal(w, rows) for w in model.get_weights())


@child_test
def a_part_that_is_read_after_its_lookup_has_no_row_of_a_later_id():
    first, second = workers(partition_axis="row")
    step(first, range(20))
    (table,) = first.state.tables
    _, recent = table.lookup.shared.snapshot_of_lookup(table.lookup.variables)
    before = table_of(first)[-1]
    for i in range(2):
        step(second, range(500 + 15 * i, 515 + 15 * i))
    found = []
    for part, shard in enumerate(table.shards):
        rows, value = table.lookup.shared.snapshot_of_part(table, part, recent, shard.value)
        same([shard.fetch()], [value])
        found += rows.numpy().tolist()
    assert sorted(found) == np.flatnonzero(table_of(first)[-1] != before).tolist()


@child_test
def a_process_that_has_not_noticed_that_the_servers_were_filled_again_gives_no_row():
    first, second = workers()
    step(second, range(5))
    lookup = first.state.tables[0].lookup
    lookup.push_initial_rows()
    before = table_of(first)
    expect_error(ClusterError, "FailedPrecondition", lambda: step(second, range(50, 55)))
    same(before, table_of(first))
