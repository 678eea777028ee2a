"""Collective operations among the replicas of one `tf.distribute.MirroredStrategy`.

TensorFlow's all-reduce of sparse gradients pads every replica's slices to the longest, and two
strategies in one process may confuse the keys of their collectives. Here the tensors of a replica
are copied to the devices of the others as they are. The bytes that replicas receive are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

Tensors = tuple[tf.Tensor, ...]
_COUNTER = "_twml_traffic"


def num_replicas() -> int:
    """Returns the number of replicas that the running code can exchange tensors with.

    Returns:
        The number of replicas, including the calling one; 1 outside of the replica context of a
        MirroredStrategy.
    """
    context = tf.distribute.get_replica_context()
    # A strategy of several hosts would exchange the tensors of this host's replicas only. Such
    # strategies keep the all-reduce of Keras.
    if context is None or type(context.strategy) is not tf.distribute.MirroredStrategy:
        return 1
    return int(context.num_replicas_in_sync)


def gather_per_replica(tensors: Sequence[tf.Tensor]) -> list[Tensors]:
    """Gathers tensors of all replicas without concatenating them.

    All replicas must call this with tensors of the same types in the same order. Shapes may differ.
    No gradient flows through it; `all_gather` is differentiable.

    Args:
        tensors: The tensors of this replica.

    Returns:
        For each tensor, the tensors of all replicas, in the order of the replicas.
    """
    if num_replicas() == 1:
        return [(t,) for t in tensors]
    context = tf.distribute.get_replica_context()
    gathered, received = context.merge_call(
        _gather, args=([tf.convert_to_tensor(t) for t in tensors],)
    )
    _count_bytes(context.strategy, received)
    return gathered


def all_gather(tensor: tf.Tensor) -> tf.Tensor:
    """Concatenates the replicas' tensors. Its gradient is `reduce_scatter`.

    Args:
        tensor: [K_r, ...] of replica r.

    Returns:
        [sum of all K_r, ...], in the order of the replicas, the same on each of them.
    """
    if num_replicas() == 1:
        return tensor

    @tf.custom_gradient
    def gathered(own: tf.Tensor) -> Any:
        (all_tensors,) = gather_per_replica([own])
        sizes = tf.stack([tf.shape(t)[0] for t in all_tensors])
        return tf.concat(all_tensors, axis=0), lambda grad: reduce_scatter(grad, sizes)

    return gathered(tensor)


def reduce_scatter(tensor: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Adds up this replica's slice of all replicas' tensors, in the order of the replicas.

    Its gradient is `all_gather`.

    Args:
        tensor: [sum of sizes, ...], of the same shape on every replica.
        sizes: Integer [replicas], the number of rows of each replica's slice.

    Returns:
        [size of this replica's slice, ...].
    """
    if num_replicas() == 1:
        return tensor
    context = tf.distribute.get_replica_context()

    @tf.custom_gradient
    def scattered(whole: tf.Tensor) -> Any:
        slices = tf.split(whole, sizes, num=context.num_replicas_in_sync)
        own, received = context.merge_call(_scatter, args=(slices,))
        _count_bytes(context.strategy, received)
        return tf.add_n(own), all_gather

    return scattered(tensor)


def received_bytes(strategy: tf.distribute.Strategy) -> int:
    """Returns how many bytes the replicas of a strategy have received from each other so far.

    Only tensors that this package exchanges are counted, not the dense gradients that TensorFlow
    adds up.

    Args:
        strategy: A `tf.distribute.MirroredStrategy`.

    Returns:
        The sum over all replicas, in bytes.
    """
    counter = getattr(strategy, _COUNTER, None)
    return (
        0 if counter is None else sum(int(v) for v in strategy.experimental_local_results(counter))
    )


def _gather(strategy: tf.distribute.Strategy, tensors: Sequence[Any]) -> Any:
    per_tensor = [strategy.experimental_local_results(t) for t in tensors]
    return _send(strategy, lambda _: per_tensor)


def _scatter(strategy: tf.distribute.Strategy, slices: Sequence[Any]) -> Any:
    per_receiver = [strategy.experimental_local_results(s) for s in slices]
    return _send(strategy, lambda receiver: per_receiver[receiver])


def _send(strategy: tf.distribute.Strategy, tensors_for: Any) -> Any:
    """Gives each replica `tensors_for(its index)`, and the number of bytes from other replicas."""
    _make_counter(strategy)

    def receive(context: Any) -> tuple[Any, tf.Tensor]:
        receiver = context.replica_id_in_sync_group
        # Tables are on the host, and so are the ops that take what replicas send to each other.
        device = strategy.extended.worker_devices[receiver]
        with library.on_host() if library.is_host_only else tf.device(device):
            received = tf.nest.map_structure(tf.identity, tensors_for(receiver))
            by_sender = received if isinstance(received, list) else [received]
            foreign = [t for by in by_sender for sender, t in enumerate(by) if sender != receiver]
            return received, tf.add_n([_bytes(t) for t in foreign])

    return strategy.experimental_distribute_values_from_function(receive)


def _bytes(tensor: tf.Tensor) -> tf.Tensor:
    return tf.size(tensor, out_type=tf.int64) * tensor.dtype.size


def _make_counter(strategy: tf.distribute.Strategy) -> None:
    if hasattr(strategy, _COUNTER):
        return
    with tf.init_scope():
        counter = tf.Variable(
            tf.zeros([], tf.int64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    setattr(strategy, _COUNTER, counter)


def _count_bytes(strategy: tf.distribute.Strategy, received: tf.Tensor) -> None:
    getattr(strategy, _COUNTER).assign_add(received)
