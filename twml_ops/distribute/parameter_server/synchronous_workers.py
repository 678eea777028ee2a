"""Synchronous workers: how the gradients of several workers become one update.

Every worker puts the contributions of its batch into queues on the servers that need them: entries
(which are on the servers already, from the forward product), gradients of products, dense gradients
and states of layers (`contributions_of`). Then it enqueues a ticket with the number of the step.
Worker 0, the leader, waits for the tickets of all workers, dequeues their contributions, combines
them (`combine`), applies the update of the concatenated batch, and releases the other workers, the
followers. Unless all tickets have arrived, nothing is updated.

A restarted worker starts a new generation of queues and closes the queues of the old one, which may
have contributions of its former process. The calls that wait in closed queues then fail, their
workers join the new generation, read the number of the step and go on with its batch. A worker that
reads the number while the leader still updates has a ticket of another step than the leader, which
then starts a new generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.parameter_server import encoding, micro_batches
from twml_ops.distribute.parameter_server.cluster import Cluster
from twml_ops.distribute.parameter_server.dynamic_rows import turn_of
from twml_ops.distribute.parameter_server.state import GENERATIONS, RunState
from twml_ops.distribute.parameter_server.updates import (
    ShardGradient,
    ShardGradients,
    weighted_sum,
)

_MAX_CLOSED = 64  # how many old generations a restarted worker closes
OTHER_STEP = "twml_ops: a worker is at another step"
"""The beginning of the message of a step whose tickets are of several steps."""

Contributions = Mapping[tuple[str, str], Sequence[tf.Tensor]]
"""(device, label) -> the tensors that a worker sends to that device under that label."""


class JoinedContributions(NamedTuple):
    """What the leader has of the contributions of all workers.

    Attributes:
        sparse: [server] entries and gradients of products.
        gradients: The dense gradients of the concatenated batch; None where there is none.
        states: [worker] the states of layers after its batch.
        shares: The share of each worker in the examples, float32 scalars.
    """

    sparse: list[ShardGradients]
    gradients: list[Any]
    states: list[list[tf.Tensor]]
    shares: list[tf.Tensor]


class GradientQueues:
    """The queues of a synchronous run, as one worker uses them.

    Args:
        cluster: The cluster, in which this process is a worker.
        state: The shared state of the run.

    Attributes:
        worker: The number of this worker; 0 is the leader.
        followers: The numbers of the other workers, 1 to W - 1.
        generation: The generation of queues that this worker uses.
    """

    def __init__(self, cluster: Cluster, state: RunState) -> None:
        self._state = state
        self._home = cluster.devices[0]
        self.worker = cluster.index
        self.followers = range(1, len(cluster.workers))
        self.generation = 0
        self._handles: dict[str, tf.Tensor] = {}

    def join(self) -> None:
        """Joins the run, as a worker that has just started.

        A follower that was never in the run joins the current generation, whose queues have nothing
        of it. If it started a generation, each of many workers that start would let the others
        trace their graphs again.
        """
        if self._count_in() > 1 or self.worker == 0:
            self.start_generation()
        else:
            self.generation = int(self._state.generation.value().numpy())

    def start_generation(self) -> None:
        """Starts a new generation and closes the old ones."""
        counter = self._state.generation
        self.generation = int(counter.assign_add(tf.constant(1, tf.int64)).numpy())
        first = self.generation // GENERATIONS * GENERATIONS + 1
        devices, lookups = self._state.devices, range(len(self._state.lookups))
        turns = [(devices[n % len(devices)], turn_of(n)) for n in lookups]
        places = [(self._home, "ticket"), (self._home, "go"), *turns]
        for old in range(max(first, self.generation - _MAX_CLOSED), self.generation):
            for worker in self.followers:
                for device, label in places:
                    queue = self._queue(device, f"{label}/{worker}", [tf.int64], old)
                    self._close(device, queue)

    def rejoin(self) -> bool:
        """Joins the current generation.

        Returns:
            Whether it is another generation than before.

        Raises:
            WorkerReplacedError: Another process has taken the place of this worker.
        """
        self._state.worker_token.check()
        before = self.generation
        self._count_in()
        self.generation = int(self._state.generation.value().numpy())
        return self.generation != before

    def _count_in(self) -> int:
        """Counts how often this worker has joined since the servers were initialized."""
        joined = self._state.joined
        own = tf.one_hot(self.worker, joined.shape[0], dtype=tf.int64)
        return int(joined.assign_add(own).numpy()[self.worker])

    def send_to_leader(self, contributions: Contributions, number: tf.Tensor) -> tf.Tensor:
        """Enqueues a follower's contributions and waits for the leader. Used in a graph.

        Args:
            contributions: The contributions of this worker.
            number: The run's step before the update, an int64 scalar.

        Returns:
            The run's step after the update, an int64 scalar.
        """
        enqueued = []
        for (device, label), tensors in contributions.items():
            queue = self._queue(device, f"{label}/{self.worker}", [t.dtype for t in tensors])
            with tf.device(device):
                enqueued.append(tf.raw_ops.QueueEnqueueV2(handle=queue, components=list(tensors)))
        ticket = self._queue(self._home, f"ticket/{self.worker}", [tf.int64])
        go = self._queue(self._home, f"go/{self.worker}", [tf.int64])
        with tf.device(self._home):
            with tf.control_dependencies(enqueued):
                sent = tf.identity(number)
                ticket_sent = tf.raw_ops.QueueEnqueueV2(handle=ticket, components=[sent])
            with tf.control_dependencies([ticket_sent]):
                (step,) = _dequeue(go, [tf.TensorSpec([], tf.int64)])
        return step

    def collect(
        self, own: Contributions, number: tf.Tensor
    ) -> tuple[dict[tuple[str, str], list[list[tf.Tensor]]], tf.Operation]:
        """Waits for all tickets and dequeues the followers' contributions. Used in a graph.

        Args:
            own: The contributions of the leader.
            number: The run's step before the update, an int64 scalar.

        Returns:
            (device, label) -> the contributions of each worker, in the order of the workers; and
            an op that fails unless all workers are at the same step.
        """
        with tf.device(self._home):
            at = [tf.identity(number), self._state.step.value()]
        for worker in self.followers:
            queue = self._queue(self._home, f"ticket/{worker}", [tf.int64])
            with tf.device(self._home):
                at += _dequeue(queue, [tf.TensorSpec([], tf.int64)])
        with tf.device(self._home):
            same = tf.reduce_all(tf.equal(tf.stack(at), number))
            tickets = [tf.raw_ops.Assert(condition=same, data=[OTHER_STEP, tf.stack(at)])]
        collected: dict[tuple[str, str], list[list[tf.Tensor]]] = {}
        for (device, label), tensors in own.items():
            collected[device, label] = [list(tensors)]
            specs = [
                tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype)
                for t in tensors
            ]
            for worker in self.followers:
                queue = self._queue(device, f"{label}/{worker}", [t.dtype for t in tensors])
                with tf.device(device), tf.control_dependencies(tickets):
                    collected[device, label].append(_dequeue(queue, specs))
        return collected, tickets[0]

    def release_followers(self, step: tf.Tensor) -> None:
        """Lets the followers continue after all previous ops of the graph. Used in a graph.

        Args:
            step: The run's step after the update, an int64 scalar.
        """
        before = effects_so_far(self._home)
        for worker in self.followers:
            queue = self._queue(self._home, f"go/{worker}", [tf.int64])
            with tf.device(self._home), tf.control_dependencies([before]):
                tf.raw_ops.QueueEnqueueV2(handle=queue, components=[tf.identity(step)])

    def wait_for_turn(self, device: str, label: str) -> list[tf.Operation]:
        """Waits in a step until the worker before this one has passed its turn. Used in a graph.

        Args:
            device: The device of a server, on which all workers wait.
            label: What the turn is for.

        Returns:
            The op that waits; none for the leader, which is the first.
        """
        if self.worker == 0:
            return []
        queue = self._queue(device, f"{label}/{self.worker}", [tf.int64])
        with tf.device(device):
            (number,) = _dequeue(queue, [tf.TensorSpec([], tf.int64)])
        return [number.op]

    def pass_turn(self, device: str, label: str, after: Sequence[tf.Operation]) -> None:
        """Passes the turn to the next worker, if there is one. Used in a graph.

        Args:
            device: The device of the server.
            label: What the turn is for.
            after: Ops of the device that belong to the turn of this worker.
        """
        if self.worker + 1 not in self.followers:
            return
        queue = self._queue(device, f"{label}/{self.worker + 1}", [tf.int64])
        with tf.device(device), tf.control_dependencies(list(after)):
            number = tf.constant(self.worker, tf.int64)
            tf.raw_ops.QueueEnqueueV2(handle=queue, components=[number])

    def _queue(
        self, device: str, label: str, types: Sequence[Any], generation: int | None = None
    ) -> tf.Tensor:
        generation = self.generation if generation is None else generation
        name = f"{self._state.prefix}/{generation}/{label}/{device[-20:]}"
        # TensorFlow orders the ops of a queue by its handle, so there must be only one.
        if name not in self._handles:
            with tf.init_scope(), tf.device(device):
                self._handles[name] = tf.raw_ops.FIFOQueueV2(
                    component_types=list(types),
                    shapes=[],
                    capacity=2,
                    container="",
                    shared_name=name,
                )
        return self._handles[name]

    def _close(self, device: str, queue: tf.Tensor) -> None:
        with tf.device(device):
            tf.raw_ops.QueueCloseV2(handle=queue, cancel_pending_enqueues=True)


def effects_so_far(device: str) -> tf.Operation:
    """Returns an op that waits for all ops with side effects of the graph that is being built.

    The ops of a device are grouped there: for each op that another device waits for, TensorFlow
    would send a message.

    Args:
        device: The device of the op, on which its result is needed.
    """
    graph = tf.compat.v1.get_default_graph()
    effects = [op for op in graph.get_operations() if _has_effects(op)]
    with tf.device(device):
        return tf.group(*effects)


def _has_effects(op: Any) -> bool:
    if op.type in ("Placeholder", "VarHandleOp") or op.op_def is None:
        return False
    return op.op_def.is_stateful or any(t.dtype == tf.resource for t in op.inputs)


def _dequeue(queue: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    components = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[s.dtype for s in specs])
    tensors = list(components) if isinstance(components, (list, tuple)) else [components]
    for tensor, spec in zip(tensors, specs, strict=True):
        tensor.set_shape(spec.shape)
    return tensors


def contributions_of(
    devices: Sequence[str],
    by_server: Sequence[ShardGradients],
    gradients: Sequence[Any],
    num_rows: tf.Tensor,
    states: Sequence[tf.Tensor] = (),
) -> dict[tuple[str, str], list[tf.Tensor]]:
    """Returns what a worker contributes to a step.

    Args:
        devices: The servers.
        by_server: For each server, entries and gradients of products, on the server.
        gradients: The dense gradients, or the sums of `micro_batches.dense_sums`; None where there
            is none.
        num_rows: The number of examples of the batch, a float32 scalar.
        states: The states of layers after the batch.

    Returns:
        (device, label) -> tensors for that device.
    """
    own = {
        (device, "sparse"): [t for use in uses.values() for t in _tensors_of(use)]
        for device, uses in zip(devices, by_server, strict=True)
        if uses
    }
    packed = encoding.pack_gradients([g for g in gradients if g is not None])
    flat = tf.nest.flatten(packed, expand_composites=True)
    own[devices[0], "dense"] = [num_rows, *flat, *encoding.pack_gradients(states)]
    return own


def combine(
    devices: Sequence[str],
    collected: Mapping[tuple[str, str], Sequence[Sequence[tf.Tensor]]],
    by_server: Sequence[ShardGradients],
    gradients: Sequence[Any],
    states: Sequence[tf.Tensor] = (),
    in_tree: bool = False,
) -> JoinedContributions:
    """Combines the contributions of all workers into the contributions of the concatenated batch.

    Args:
        devices: The servers.
        collected: (device, label) -> [worker] the tensors of `contributions_of`.
        by_server: For each server, entries and gradients of products of this worker.
        gradients: The dense gradients of this worker.
        states: The states of layers after the batch of this worker.
        in_tree: Whether the gradients are sums over micro-batches.
    """
    sparse: list[ShardGradients] = []
    for device, uses in zip(devices, by_server, strict=True):
        if not uses:
            sparse.append({})
            continue
        workers = collected[device, "sparse"]
        with tf.device(device):
            of_uses, end = {}, 0
            for use, own in uses.items():
                begin, end = end, end + len(_tensors_of(own))
                join = _joined if own.sizes is None else _joined_micro_batches
                of_uses[use] = join([w[begin:end] for w in workers])
            sparse.append(of_uses)
    rows = [w[0] for w in collected[devices[0], "dense"]]
    shares = [n / tf.add_n(rows) for n in rows]
    like = [g for g in gradients if g is not None]
    structure = encoding.pack_gradients(like)
    end = 1 + len(tf.nest.flatten(structure, expand_composites=True))
    by_worker = [
        tf.nest.pack_sequence_as(structure, w[1:end], expand_composites=True)
        for w in collected[devices[0], "dense"]
    ]
    if in_tree:
        sums = [micro_batches.tree_sum(g) for g in zip(*by_worker, strict=True)]
        packed = [micro_batches.divided(g, tf.add_n(rows)) for g in sums]
    else:
        packed = [weighted_sum(g, shares) for g in zip(*by_worker, strict=True)]
    means = iter(encoding.unpack_gradients(packed, like))
    dense = [None if g is None else next(means) for g in gradients]
    after = [encoding.unpack_gradients(w[end:], states) for w in collected[devices[0], "dense"]]
    return JoinedContributions(sparse, dense, after, shares)


def _tensors_of(use: ShardGradient) -> list[tf.Tensor]:
    """What a worker sends of a product: ids, values, row_splits, the gradients and sizes."""
    return [*use.entries, use.gradient, *use.weights, *([] if use.sizes is None else [use.sizes])]


def _joined(workers: Sequence[Sequence[tf.Tensor]]) -> ShardGradient:
    """The entries of the batches of all workers, and the gradient of the mean loss of all."""
    joined = ops.join_batches([(w[0], w[1], w[2]) for w in workers], [w[3] for w in workers])
    of_weights = list(zip(*(w[4:] for w in workers), strict=True))
    if of_weights:  # the shares of the workers, without a message of theirs
        rows = [tf.cast(encoding.num_rows(w[2]), tf.float32) for w in workers]
        shares = [n / tf.add_n(rows) for n in rows]
        of_weights = [weighted_sum(gradients, shares) for gradients in of_weights]
    return ShardGradient(encoding.ShardEntries(*joined[:3]), joined[3], of_weights)


def _joined_micro_batches(workers: Sequence[Sequence[tf.Tensor]]) -> ShardGradient:
    """The entries of all micro-batches, and the gradient of the mean loss of each."""
    joined = ops.join_batches([(w[0], w[1], w[2]) for w in workers])
    gradient, sizes = (tf.concat([w[i] for w in workers], axis=0) for i in (3, 4))
    return ShardGradient(encoding.ShardEntries(*joined[:3]), gradient, sizes=sizes)
