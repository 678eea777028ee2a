"""Synchronous steps of several workers: their gradients meet on the servers.

Every worker puts what its batch contributes into queues on the servers it is for: entries (which
are there already, from the forward product), gradients of products, dense gradients. Then it hands
in a ticket. When the leader, worker 0, has all tickets, it takes the contributions out, updates as
one worker with the joined batch would, and lets the others go on. Without all tickets nothing is
applied.

A worker that comes back starts a new generation of queues and closes those of the old one, which
wakes everybody who waits there; they join the new generation and repeat their step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid.cluster import Cluster
from twml_ops.distribute.hybrid.state import GENERATIONS, RunState

_OLD = 64  # generations that a newcomer closes


class GradientQueues:
    """One worker's end of the queues."""

    def __init__(self, cluster: Cluster, state: RunState) -> None:
        self._state = state
        self._home = cluster.devices[0]
        self.me = cluster.index
        self.others = range(1, len(cluster.workers))
        self.generation = 0

    def start_generation(self) -> None:
        """As a worker that has just come: wakes all who wait for one that was here before."""
        counter = self._state.generation
        self.generation = int(counter.assign_add(tf.constant(1, tf.int64)).numpy())
        first = self.generation // GENERATIONS * GENERATIONS + 1
        for old in range(max(first, self.generation - _OLD), self.generation):
            for worker in self.others:
                for label in ("ticket", "go"):
                    self._close(self._queue(self._home, f"{label}/{worker}", [tf.int64], old))

    def rejoin(self) -> bool:
        """Joins the current generation; whether it is a new one."""
        before = self.generation
        self.generation = int(self._state.generation.value().numpy())
        return self.generation != before

    def put(self, contributions: Mapping[tuple[str, str], Sequence[tf.Tensor]]) -> tf.Tensor:
        """As a follower, in a graph: hands in what each (device, label) gets; waits for the leader.

        Returns:
            The run's step after it.
        """
        puts = []
        for (device, label), tensors in contributions.items():
            queue = self._queue(device, f"{label}/{self.me}", [t.dtype for t in tensors])
            with tf.device(device):
                puts.append(tf.raw_ops.QueueEnqueueV2(handle=queue, components=list(tensors)))
        ticket = self._queue(self._home, f"ticket/{self.me}", [tf.int64])
        go = self._queue(self._home, f"go/{self.me}", [tf.int64])
        with tf.device(self._home):
            one = [tf.constant(1, tf.int64)]
            with tf.control_dependencies(puts):
                handed_in = tf.raw_ops.QueueEnqueueV2(handle=ticket, components=one)
            with tf.control_dependencies([handed_in]):
                (step,) = _dequeue(go, [tf.TensorSpec([], tf.int64)])
        return step

    def take(
        self, own: Mapping[tuple[str, str], Sequence[tf.Tensor]]
    ) -> dict[tuple[str, str], list[list[tf.Tensor]]]:
        """As the leader, in a graph: what each (device, label) got, of all workers in order."""
        tickets = []
        for worker in self.others:
            queue = self._queue(self._home, f"ticket/{worker}", [tf.int64])
            with tf.device(self._home):
                tickets += _dequeue(queue, [tf.TensorSpec([], tf.int64)])
        taken: dict[tuple[str, str], list[list[tf.Tensor]]] = {}
        for (device, label), tensors in own.items():
            taken[device, label] = [list(tensors)]
            specs = [
                tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype)
                for t in tensors
            ]
            for worker in self.others:
                queue = self._queue(device, f"{label}/{worker}", [t.dtype for t in tensors])
                with tf.device(device), tf.control_dependencies(tickets):
                    taken[device, label].append(_dequeue(queue, specs))
        return taken

    def release(self, step: tf.Tensor) -> None:
        """As the leader, in a graph: lets the others go on, once all that came before is done."""
        graph = tf.compat.v1.get_default_graph()
        before = [op for op in graph.get_operations() if _has_effects(op)]
        for worker in self.others:
            queue = self._queue(self._home, f"go/{worker}", [tf.int64])
            with tf.device(self._home), tf.control_dependencies(before):
                tf.raw_ops.QueueEnqueueV2(handle=queue, components=[tf.identity(step)])

    def _queue(
        self, device: str, label: str, types: Sequence[Any], generation: int | None = None
    ) -> tf.Tensor:
        generation = self.generation if generation is None else generation
        name = f"{self._state.prefix}/{generation}/{label}/{device[-20:]}"
        with tf.init_scope(), tf.device(device):
            return tf.raw_ops.FIFOQueueV2(
                component_types=list(types), shapes=[], capacity=2, container="", shared_name=name
            )

    def _close(self, queue: tf.Tensor) -> None:
        with tf.device(self._home):
            tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)


def _has_effects(op: Any) -> bool:
    if op.type in ("Placeholder", "VarHandleOp") or op.op_def is None:
        return False
    return op.op_def.is_stateful or any(t.dtype == tf.resource for t in op.inputs)


def _dequeue(queue: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    got = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[s.dtype for s in specs])
    got = list(got) if isinstance(got, (list, tuple)) else [got]
    for tensor, spec in zip(got, specs, strict=True):
        tensor.set_shape(spec.shape)
    return got
