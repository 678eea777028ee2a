"""What a step computes: one graph over the devices of this process and of all servers."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import updates
from twml_ops.distribute.hybrid.cluster import Cluster
from twml_ops.distribute.hybrid.gradient_queues import GradientQueues
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.state import RunState
from twml_ops.distribute.hybrid.tables import ParameterServerPlacement, RemoteTable, TableProduct
from twml_ops.distribute.hybrid.wire import ShardEntries
from twml_ops.ops._tape import tf_variable

# Of one server: the entries and the gradient of each product.
ShardGradients = list[tuple[ShardEntries, tf.Tensor]]


@dataclasses.dataclass(eq=False)
class StepGraph:
    """A step of training, and one that only looks.

    Attributes:
        model: whose tables are `placement`'s.
        optimizer: of all its weights.
        cluster: who takes part.
        state: of the run, on the servers.
        placement: the tables.
        queues: with the other workers of a synchronous run; None: there are none.
        bounded: whether the steps of each worker are counted, since staleness is bounded.
    """

    model: tf.keras.Model
    optimizer: Any
    cluster: Cluster
    state: RunState
    placement: ParameterServerPlacement
    queues: GradientQueues | None
    bounded: bool
    _uses: list[tuple[RemoteTable, bool, list[RemoteVariable]]] = dataclasses.field(
        default_factory=list, init=False
    )
    _stored: dict[str, RemoteVariable] = dataclasses.field(default_factory=dict, init=False)

    def train(
        self, x: Any, y: Any, weights: Any, prefetched: Any = None, next_x: Any = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Any]:
        """(loss, the run's step, steps of each worker, products of the next batch) after a step.

        Args:
            x: of the batch.
            y: its labels.
            weights: its weights, or None.
            prefetched: this batch's products, from `prefetch` or the step before; None: they are to
                be asked for.
            next_x: the next batch's x, whose products are asked for before tables are updated;
                None: they are not.
        """
        with tf.device(self.cluster.own_device):
            self._begin()
            if next_x is None:
                return (*self._train(x, y, weights, None), [])
            known = self._known(prefetched)  # before what is kept for it is overwritten
            found, read = self._prefetch(next_x)
            result = self._train(x, y, weights, known)
            _refuse_written(read)
            return (*result, found)

    def prefetch(self, x: Any) -> list[tf.Tensor]:
        """Asks for the products of a batch; its entries are kept on the servers."""
        with tf.device(self.cluster.own_device):
            return self._prefetch(x)[0]

    def _prefetch(self, x: Any) -> tuple[list[tf.Tensor], list[Any]]:
        """What `prefetch` returns, and the variables that it depends on."""
        with self.placement.recording() as products:
            self.model(x, training=False)  # all but what products need is pruned
        read = _variables([t for p in products for t in p.entries or () if t is not None])
        # As results of a function they would travel here and back.
        self._uses = [
            (p.table, p.binary, [self._store(use, *placed) for placed in p.on_servers()])
            for use, p in enumerate(products)
        ]
        return [p.output for p in products], read

    def _store(self, use: int, place: tuple[int, str], tensor: tf.Tensor) -> RemoteVariable:
        """Keeps a tensor of the batch ahead on a server."""
        number, device = place
        name = f"{self.state.prefix}/ahead/{self.cluster.index}/{use}/{number}"
        # The same handle each time: TensorFlow orders what reads and what writes one by it.
        kept = self._stored.get(name)
        if kept is None:
            kept = self._stored[name] = RemoteVariable(name, [None], tensor.dtype, device)
        kept.assign(tensor)
        return kept

    def _known(self, prefetched: Any) -> list[TableProduct]:
        return [
            self.placement.arrived(table, [v.value() for v in variables], output, binary)
            for (table, binary, variables), output in zip(self._uses, prefetched, strict=True)
        ]

    def _train(
        self, x: Any, y: Any, weights: Any, known: list[TableProduct] | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        loss, products, gradients = self._backward(x, y, weights, known)
        used = [p for p in products if p.gradient is not None]
        parts = self._group_by_server(used)
        none = tf.zeros([0], tf.int64)
        if self.queues is None:
            self._update(used, [[p] for p in parts], gradients)
            return loss, self._count(), self._count_own()
        rows = tf.cast(tf.shape(tf.nest.flatten(y)[0])[0], tf.float32)
        own = self._contributions(parts, gradients, rows)
        if self.queues.worker:
            return loss, self.queues.send_to_leader(own), none
        taken = self.queues.collect(own)
        # A step that ends because somebody is missing must not even be counted.
        with tf.control_dependencies([t for tensors in taken.values() for t in tensors[-1]]):
            joined = self._joined(taken, len(used), gradients)
            self._update(used, *joined)
            step = self._count()
        self.queues.release_followers(step)
        return loss, step, none

    def _group_by_server(self, used: list[TableProduct]) -> list[ShardGradients]:
        """For each server, the entries and gradients of each product, there."""
        servers = range(len(self.cluster.devices))
        return [[(u.parts[p], self.placement.send_part(u, p)) for u in used] for p in servers]

    def _contributions(
        self,
        parts: list[ShardGradients],
        gradients: list[Any],
        rows: tf.Tensor,
    ) -> dict[tuple[str, str], list[tf.Tensor]]:
        """Of this worker to a step of all: (device, label) -> tensors."""
        devices = self.cluster.devices
        own = {
            (device, "sparse"): [t for part, grad in uses for t in (*part, grad)]
            for device, uses in zip(devices, parts, strict=True)
            if uses
        }
        some = [g for g in gradients if g is not None]
        own[devices[0], "dense"] = [rows, *tf.nest.flatten(some, expand_composites=True)]
        return own

    def _joined(self, taken: Any, uses: int, gradients: list[Any]) -> tuple[Any, Any]:
        """The workers' contributions as those of one with the joined batch."""
        devices = self.cluster.devices
        parts: list[list[ShardGradients]] = []  # [server][worker][use]
        for device in devices if uses else ():
            workers = taken[device, "sparse"]
            with tf.device(device):
                sizes = [tf.cast(tf.shape(w[3])[0], tf.float32) for w in workers]
                total = tf.add_n(sizes)
                parts.append(
                    [
                        [
                            (ShardEntries(*w[i : i + 3]), w[i + 3] * (n / total))
                            for i in range(0, 4 * uses, 4)
                        ]
                        for w, n in zip(workers, sizes, strict=True)
                    ]
                )
        rows = [w[0] for w in taken[devices[0], "dense"]]
        shares = [n / tf.add_n(rows) for n in rows]
        some = [g for g in gradients if g is not None]
        each = [
            tf.nest.pack_sequence_as(some, w[1:], expand_composites=True)
            for w in taken[devices[0], "dense"]
        ]
        means = iter([_mean(g, shares) for g in zip(*each, strict=True)])
        return parts, [None if g is None else next(means) for g in gradients]

    def _begin(self) -> None:
        """Takes what is shared."""
        if not self.state.shared_variables:
            return
        self.pull()
        for each in updates.component_optimizers(self.optimizer):
            each.iterations.assign(tf.cast(self.state.step.value(), each.iterations.dtype))

    def _backward(
        self, x: Any, y: Any, weights: Any, known: list[TableProduct] | None
    ) -> tuple[tf.Tensor, list[TableProduct], list[Any]]:
        with tf.GradientTape() as tape, self.placement.recording(tape, known) as products:
            prediction = self.model(x, training=True)
            loss = self.model.compute_loss(x, y, prediction, weights)
        trained = [tf_variable(v) for v in self.state.trained]
        sources = [*trained, *(p.output for p in products)]
        gradients = tape.gradient(loss, sources)
        for product, gradient in zip(products, gradients[len(trained) :], strict=True):
            product.gradient = gradient
        return loss, products, gradients[: len(trained)]

    def _update(self, used: list[TableProduct], parts: Any, gradients: list[Any]) -> None:
        """Of tables, with [server][worker][use] entries and gradients; then of the rest."""
        for table in self.placement.tables:
            uses = [i for i, p in enumerate(used) if p.table is table]
            if not uses:
                continue
            optimizer = updates.optimizer_of(self.optimizer, table)
            rate = optimizer.current_learning_rate()
            for p, workers in enumerate(parts):
                each = [([worker[i] for worker in workers], used[i].binary) for i in uses]
                updates.update_shard(optimizer, table, p, each, rate)
        self._update_dense(gradients)

    def _update_dense(self, gradients: list[Any]) -> None:
        pairs = [
            (g, v) for g, v in zip(gradients, self.state.trained, strict=True) if g is not None
        ]
        if not self.state.shared_variables:
            counted = [each.iterations + 1 for each in updates.component_optimizers(self.optimizer)]
            if pairs:
                self.optimizer.apply_gradients(pairs)
            for each, steps in zip(
                updates.component_optimizers(self.optimizer), counted, strict=True
            ):
                each.iterations.assign(steps)  # those too that have tables only
            return
        shared_variables = {id(t.local): t for t in self.state.shared_variables}
        for gradient, v in pairs:
            optimizer, shared = updates.optimizer_of(self.optimizer, v), shared_variables[id(v)]
            rate = optimizer.current_learning_rate()
            updates.update_dense_variable(
                optimizer, gradient, shared.remote, shared.slots, optimizer.weight_decay_of(v), rate
            )
        if self.cluster.is_chief:  # what layers keep of the batches they saw
            for shared in self.state.shared_variables:
                if not shared.trained:
                    shared.push()

    def _count(self) -> tf.Tensor:
        return self.state.step.assign_add(tf.constant(1, tf.int64))

    def _count_own(self) -> tf.Tensor:
        if not self.bounded:
            return tf.zeros([0], tf.int64)
        counts = self.state.worker_steps
        return counts.assign_add(tf.one_hot(self.cluster.index, counts.shape[0], dtype=tf.int64))

    def forward(self, x: Any, y: Any, weights: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """(prediction, loss), with what is shared now."""
        with tf.device(self.cluster.own_device):
            self.pull()
            prediction = self.model(x, training=False)
            return prediction, self.model.compute_loss(x, y, prediction, weights)

    def pull(self) -> None:
        """Takes the dense weights that all workers share."""
        for shared in self.state.shared_variables:
            shared.pull()


def _mean(gradients: Any, shares: list[tf.Tensor]) -> Any:
    """The weighted sum of the workers' gradients of one variable."""
    first = gradients[0]
    if isinstance(first, tf.IndexedSlices):
        values = [g.values * share for g, share in zip(gradients, shares, strict=True)]
        indices = tf.concat([g.indices for g in gradients], axis=0)
        return tf.IndexedSlices(tf.concat(values, axis=0), indices, first.dense_shape)
    return tf.add_n([g * share for g, share in zip(gradients, shares, strict=True)])


_READS = ("ReadVariableOp", "ResourceGather", "VariableShape")


def _variables(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """The variables, as handles, that tensors of a graph depend on.

    Raises:
        ValueError: they depend on something else that changes.
    """
    seen, ops, found = set(), [t.op for t in tensors], []
    while ops:
        op = ops.pop()
        if op in seen:
            continue
        seen.add(op)
        handles = [t for t in op.inputs if t.dtype == tf.resource]
        if (handles and op.type not in _READS) or (
            not handles and op.type != "Placeholder" and op.op_def.is_stateful
        ):
            raise _changes(op)
        found += handles
        ops += [t.op for t in op.inputs if t.dtype != tf.resource]
    return found


def _refuse_written(handles: list[tf.Tensor]) -> None:
    """Refuses variables that are not only read in their graph."""
    for op in (op for handle in handles for op in handle.consumers()):
        if op.type not in _READS:
            raise _changes(op)


def _changes(op: Any) -> ValueError:
    return ValueError(
        "pipeline=True needs tables before which no layer has state that training changes, got "
        f"entries that depend on {op.name} ({op.type}): a batch is looked up before the update of "
        "the one before it"
    )
