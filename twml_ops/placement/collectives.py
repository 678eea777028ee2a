"""What replicas of one `tf.distribute.MirroredStrategy` hand to each other, as it is, and counted.

Stock all-reduces of sparse gradients go through collectives that pad to the longest replica and
want keys that two strategies of a process confuse. Here a replica's tensors are simply placed on
the others' devices, where they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensors = tuple[tf.Tensor, ...]
_COUNTER = "_twml_traffic"


def num_replicas() -> int:
    """With how many replicas, itself included, the running code can exchange anything."""
    context = tf.distribute.get_replica_context()
    # Of several hosts each would see its own replicas only: those keep Keras' own all-reduce.
    if context is None or type(context.strategy) is not tf.distribute.MirroredStrategy:
        return 1
    return int(context.num_replicas_in_sync)


def gather_per_replica(tensors: Sequence[tf.Tensor]) -> list[Tensors]:
    """For each tensor, those of all replicas, in the order of the replicas.

    Every replica calls it, with tensors of the same types, in the same order; shapes may differ.
    Nothing is differentiated through it: see `all_gather`.
    """
    if num_replicas() == 1:
        return [(t,) for t in tensors]
    context = tf.distribute.get_replica_context()
    theirs, received = context.merge_call(
        _gather, args=([tf.convert_to_tensor(t) for t in tensors],)
    )
    _count(context.strategy, received)
    return theirs


def all_gather(tensor: tf.Tensor) -> tf.Tensor:
    """The replicas' tensors [K_r, ...] behind each other. Differentiable: see `reduce_scatter`."""
    if num_replicas() == 1:
        return tensor

    @tf.custom_gradient
    def gathered(mine: tf.Tensor) -> Any:
        (theirs,) = gather_per_replica([mine])
        sizes = tf.stack([_length(t) for t in theirs])
        return tf.concat(theirs, axis=0), lambda grad: reduce_scatter(grad, sizes)

    return gathered(tensor)


def reduce_scatter(tensor: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """The sum over replicas of this replica's part of their tensors, in the order of replicas.

    Args:
        tensor: [sum of sizes, ...], of the same shape on every replica.
        sizes: integer [replicas], how much of it is whose.
    """
    if num_replicas() == 1:
        return tensor
    context = tf.distribute.get_replica_context()

    @tf.custom_gradient
    def scattered(whole: tf.Tensor) -> Any:
        parts = tf.split(whole, sizes, num=context.num_replicas_in_sync)
        mine, received = context.merge_call(_scatter, args=(parts,))
        _count(context.strategy, received)
        return tf.add_n(mine), all_gather

    return scattered(tensor)


def received_bytes(strategy: tf.distribute.Strategy) -> int:
    """How many bytes the replicas of `strategy`, all together, got from others so far."""
    counter = getattr(strategy, _COUNTER, None)
    return (
        0 if counter is None else sum(int(v) for v in strategy.experimental_local_results(counter))
    )


def _gather(strategy: tf.distribute.Strategy, tensors: Sequence[Any]) -> Any:
    per_tensor = [strategy.experimental_local_results(t) for t in tensors]
    return _hand_out(strategy, lambda _: per_tensor)


def _scatter(strategy: tf.distribute.Strategy, parts: Sequence[Any]) -> Any:
    per_receiver = [strategy.experimental_local_results(p) for p in parts]
    return _hand_out(strategy, lambda receiver: per_receiver[receiver])


def _hand_out(strategy: tf.distribute.Strategy, of_receiver: Any) -> Any:
    """To each replica: `of_receiver(its index)`, tensors by sender, and the bytes not its own."""
    _make_counter(strategy)

    def on_device_of(context: Any) -> tuple[Any, tf.Tensor]:
        me = context.replica_id_in_sync_group
        with tf.device(strategy.extended.worker_devices[me]):
            got = tf.nest.map_structure(tf.identity, of_receiver(me))
            by_sender = got if isinstance(got, list) else [got]
            foreign = [t for by in by_sender for sender, t in enumerate(by) if sender != me]
            return got, tf.add_n([_bytes(t) for t in foreign])

    return strategy.experimental_distribute_values_from_function(on_device_of)


def _bytes(tensor: tf.Tensor) -> tf.Tensor:
    return tf.size(tensor, out_type=tf.int64) * tensor.dtype.size


def _length(tensor: tf.Tensor) -> tf.Tensor:
    return tf.shape(tensor)[0]


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


def _count(strategy: tf.distribute.Strategy, received: tf.Tensor) -> None:
    getattr(strategy, _COUNTER).assign_add(received)
