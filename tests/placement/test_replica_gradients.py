"""The sum of replicas' sparse gradients: its value, and in which form and size it is sent."""

import numpy as np
import pytest
import tensorflow as tf

from tests.distribute.conftest import ragged_batch, replicas_of
from tests.pairwise import on_both
from twml_ops import distribute, ops, placement
from twml_ops.placement import replica_gradients

B, D = 12, 16


def reduced_gradients(strategy, batch, n, modified=False):
    """Returns the dense reduced gradient on each replica, the bytes received, and the table."""
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([n, D], [1, 2]))

    @tf.function
    def step(batch):
        def replica(ids, values, _):
            values = None if values is None else values.flat_values
            with tf.GradientTape() as tape:
                y = ops.sparse_linear(ids.flat_values, values, ids.row_splits, table)
                loss = tf.reduce_sum(y**2)
            gradient = tape.gradient(loss, table)
            if modified:  # as clipping does
                gradient = tf.IndexedSlices(gradient.values * 1.0, gradient.indices, [n, D])
            return tf.convert_to_tensor(placement.placement_of(table).reduce_gradient(gradient))

        return strategy.run(replica, args=batch)

    before = distribute.received_bytes(strategy)
    results = strategy.experimental_local_results(step(replicas_of(strategy, batch)))
    return [r.numpy() for r in results], distribute.received_bytes(strategy) - before, table


def one_replicas_gradient(batch, table):
    ids, values, _ = batch
    w = tf.Variable(tf.convert_to_tensor(table))
    with tf.GradientTape() as tape:
        y = ops.sparse_linear(ids.flat_values, values.flat_values, ids.row_splits, w)
        loss = tf.reduce_sum(y**2)
    return tf.convert_to_tensor(tape.gradient(loss, w)).numpy()


@pytest.mark.parametrize("n", [3, 1000])  # summed rows are smaller for few ids, entries for many
@pytest.mark.parametrize("modified", on_both([False, True], True))
def test_the_reduced_gradient_is_that_of_the_concatenated_batch(pair, n, modified):
    batch = ragged_batch(np.random.default_rng(0), B, n)
    results, _, table = reduced_gradients(pair, batch, n, modified)
    want = one_replicas_gradient(batch, table)
    for result in results:
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)
        assert result.tobytes() == results[0].tobytes()


def test_entries_are_sent_if_they_are_smaller(pair):
    batch = ragged_batch(np.random.default_rng(0), B, 1000, shortest=3)
    k = pair.num_replicas_in_sync
    _, received, _ = reduced_gradients(pair, batch, 1000)
    entries = int(tf.size(batch[0].flat_values))
    # For an entry its id and value, for an example its length and the gradient of its outputs.
    assert received == (k - 1) * (entries * (8 + 4) + B * (8 + 4 * D))


def test_summed_rows_are_sent_if_they_are_smaller(pair):
    batch = ragged_batch(np.random.default_rng(0), B, 3)
    k = pair.num_replicas_in_sync
    _, received, _ = reduced_gradients(pair, batch, 3)
    parts = np.array_split(np.arange(B), k)
    rows = sum(len(np.unique(tf.gather(batch[0], p).flat_values)) for p in parts)
    assert received == (k - 1) * rows * (8 + 4 + 8 + 4 * D)


def test_a_modified_gradient_is_sent_as_rows_with_distinct_ids(pair):
    batch = ragged_batch(np.random.default_rng(0), B, 50, skew=True)
    k = pair.num_replicas_in_sync
    _, received, _ = reduced_gradients(pair, batch, 50, modified=True)
    parts = np.array_split(np.arange(B), k)
    rows = sum(len(np.unique(tf.gather(batch[0], p).flat_values)) for p in parts)
    assert received == (k - 1) * rows * (8 + 4 * D)


def test_traffic_does_not_depend_on_the_size_of_the_table(pair):
    batch = ragged_batch(np.random.default_rng(0), B, 1000)
    _, small, _ = reduced_gradients(pair, batch, 1000)
    _, large, _ = reduced_gradients(pair, batch, 1 << 18)
    assert small == large > 0


@pytest.mark.parametrize(
    ("ids", "n", "smaller"),
    [
        (np.zeros(400), 1000, True),  # one row
        (np.arange(400), 1000, False),  # all different
        (np.arange(400), 2, True),  # the table itself is small
        (np.concatenate([np.arange(13), np.zeros(387)]), 1000, True),
        # Few distinct ids among the first, many in total.
        (np.concatenate([np.zeros(380), np.arange(380)]), 1000, False),
        (np.zeros(0), 1000, False),
    ],
)
def test_rows_are_smaller_compares_bytes(ids, n, smaller):
    ids = ids.astype(np.int64)
    grad, rows = tf.zeros([4, 8]), len(np.unique(ids))
    entries = len(ids) * 12 + 4 * (8 + 32)
    assert (min(rows, n) * (20 + 32) < entries) == smaller or len(ids) == 0
    got = tf.function(replica_gradients.rows_are_smaller)(
        tf.constant(ids), False, grad, tf.constant(n, tf.int64)
    )
    assert bool(got) == smaller or len(ids) == 0


@pytest.mark.parametrize("rank", [1, 2])
def test_gradients_of_gathered_variables_are_reduced(pair, rank):
    with pair.scope():
        w = tf.Variable(tf.zeros([10] + [3] * (rank - 1)))

    @tf.function
    def step():
        def replica():
            i = tf.distribute.get_replica_context().replica_id_in_sync_group
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(w, [1, 1, 4 + i]))
            return placement.placement_of(w).reduce_gradient(tape.gradient(loss, w))

        return pair.run(replica)

    slices = pair.experimental_local_results(step())
    want = np.zeros(w.shape)
    want[1], want[4], want[5] = 4, 1, 1
    for s in slices:
        np.testing.assert_array_equal(tf.convert_to_tensor(s), want)
        assert sorted(s.indices.numpy()) == [1, 1, 4, 5]  # not summed again after the exchange
