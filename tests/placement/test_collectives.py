"""Collective operations of replicas and their gradients."""

import numpy as np
import tensorflow as tf

from twml_ops import distribute
from twml_ops.placement import collectives


def run(strategy, replica):
    return strategy.experimental_local_results(tf.function(lambda: strategy.run(replica))())


def replica_id():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def test_all_gather_and_its_gradient(strategy):
    k = strategy.num_replicas_in_sync

    def replica():
        mine = tf.ones([replica_id() + 1, 2]) * tf.cast(replica_id(), tf.float32)
        weight = tf.cast(replica_id() + 1, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(mine)
            everyone = collectives.all_gather(mine)
            loss = weight * tf.reduce_sum(everyone**2)
        return everyone, tape.gradient(loss, mine)

    everyone, gradient = zip(*run(strategy, replica), strict=True)
    want = np.repeat(np.arange(k), np.arange(1, k + 1)).astype(np.float32)
    for i in range(k):
        np.testing.assert_array_equal(everyone[i][:, 0], want)
        # The losses of all replicas depend on this tensor, with their weights.
        np.testing.assert_array_equal(gradient[i], np.full((i + 1, 2), 2 * i * k * (k + 1) / 2))


def test_reduce_scatter_and_its_gradient(strategy):
    k = strategy.num_replicas_in_sync
    sizes = list(range(1, k + 1))

    def replica():
        whole = tf.range(float(sum(sizes))) + tf.cast(replica_id(), tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(whole)
            mine = collectives.reduce_scatter(whole, sizes)
            loss = tf.cast(replica_id() + 1, tf.float32) * tf.reduce_sum(mine)
        return mine, tape.gradient(loss, whole)

    mine, gradient = zip(*run(strategy, replica), strict=True)
    total = k * np.arange(sum(sizes)) + k * (k - 1) / 2
    for i in range(k):
        np.testing.assert_array_equal(mine[i], total[sum(sizes[:i]) :][: sizes[i]])
        np.testing.assert_array_equal(gradient[i], np.repeat(np.arange(1, k + 1), sizes))


def test_bytes_from_other_replicas_are_counted(strategy):
    k = strategy.num_replicas_in_sync
    before = distribute.received_bytes(strategy)
    run(
        strategy,
        lambda: collectives.gather_per_replica([tf.zeros([5]), tf.zeros([3], tf.int64)])[0],
    )
    assert distribute.received_bytes(strategy) - before == k * (k - 1) * (5 * 4 + 3 * 8)


def test_without_replicas_the_operations_are_the_identity():
    x = tf.constant([1.0, 2.0])
    assert collectives.gather_per_replica([x]) == [(x,)]
    assert collectives.all_gather(x) is x
    assert collectives.reduce_scatter(x, [2]) is x
