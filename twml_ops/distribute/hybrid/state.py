"""What a run keeps on its servers: tables, slots, the step, and what workers share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import updates
from twml_ops.distribute.hybrid.cluster import Cluster, ClusterError
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.tables import RemoteTable
from twml_ops.ops._tape import tf_variable

GENERATIONS = 1 << 20  # of queues, at most, between two fillings of the servers; in ns, 1 ms


class SharedVariable:
    """A dense weight of the model, here, and what all workers share of it, on a server.

    Attributes:
        local: the weight in this process' model.
        remote: the shared one.
        trained: whether it is.
        slots: the optimizer's variables beside it; none of a weight that is not trained.
    """

    def __init__(self, prefix: str, index: int, local: Any, device: str, optimizer: Any) -> None:
        self.local = local
        shape, dtype = tuple(local.shape), tf.as_dtype(local.dtype)
        self.remote = RemoteVariable(f"{prefix}/dense/{index}", shape, dtype, device)
        self.trained = optimizer is not None
        self.slots: list[RemoteVariable] = []
        self.initial_slots: list[float] = []
        if optimizer is None:
            return
        for slot in optimizer.update_rule.slots(shape, dtype):
            name = f"{prefix}/dense/{index}/{slot.name}"
            self.slots.append(RemoteVariable(name, slot.shape, slot.dtype, device))
            self.initial_slots.append(slot.initial_value)

    def pull(self) -> None:
        """Takes the shared value."""
        tf_variable(self.local).assign(self.remote.value())

    def push(self) -> None:
        """Shares this process' value."""
        self.remote.assign(tf_variable(self.local).read_value())

    def initialize(self) -> None:
        """Shares this process' value, and slots as the optimizer begins with them."""
        self.push()
        for slot, value in zip(self.slots, self.initial_slots, strict=True):
            slot.fill(value)


class RunState:
    """All shared variables of one run.

    A marker on each server says which initialization or restore its values come from; servers that
    all have the same one are in order, and a worker that comes, or comes back, just goes on.

    Attributes:
        step: int64, steps done by all workers.
        generation: int64, of the queues of synchronous workers.
        worker_steps: int64 [workers], of asynchronous ones.
        tables: on the servers.
        shared_variables: of the dense weights; empty if this process keeps them alone.
    """

    def __init__(
        self,
        prefix: str,
        cluster: Cluster,
        tables: Sequence[RemoteTable],
        model: tf.keras.Model,
        optimizer: Any,
        share_dense: bool,
    ) -> None:
        self.prefix = prefix
        self.devices = cluster.devices
        self.tables = list(tables)
        self.optimizer = optimizer
        self.step = RemoteVariable(f"{prefix}/step", [], tf.int64, self.devices[0])
        self.generation = RemoteVariable(f"{prefix}/generation", [], tf.int64, self.devices[0])
        workers = len(cluster.workers)
        name = f"{prefix}/steps_of"
        self.worker_steps = RemoteVariable(name, [workers], tf.int64, self.devices[0])
        self._layout = RemoteVariable(
            f"{prefix}/layout", [max(1, len(self.tables))], tf.int32, self.devices[0]
        )
        self._markers = [RemoteVariable(f"{prefix}/marker", [], tf.int64, d) for d in self.devices]
        self.trained = list(model.trainable_variables)
        self.shared_variables: list[SharedVariable] = []
        self.dense_weights = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
        if share_dense:
            trained = {id(v) for v in self.trained}
            for i, v in enumerate(self.dense_weights):
                device = self.devices[i % len(self.devices)]
                by = updates.optimizer_of(optimizer, v) if id(v) in trained else None
                self.shared_variables.append(SharedVariable(prefix, i, v, device, by))

    def marker(self) -> int:
        """Of the values on the servers; 0 if some have none, or not all the same."""
        markers = {int(m.value().numpy()) if m.exists() else 0 for m in self._markers}
        return markers.pop() if len(markers) == 1 else 0

    def await_marker(self, timeout: float) -> None:
        """Waits until the chief has filled the servers.

        Raises:
            ClusterError: it did not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.marker():
            if time.monotonic() > deadline:
                raise ClusterError(f"the chief did not fill the servers within {timeout:g} s")
            time.sleep(0.05)

    def invalidate(self) -> None:
        """Before servers are filled: nobody may take what they hold for whole."""
        for marker in self._markers:
            marker.assign(tf.constant(0, tf.int64))

    def validate(self) -> None:
        """After all servers are filled."""
        marker = tf.constant(time.time_ns(), tf.int64)
        for m in self._markers:
            m.assign(marker)

    def create(self, by_row: Sequence[bool]) -> None:
        """Names shards and slots of all tables on the servers, divided by row or by column."""
        for t, rows in zip(self.tables, by_row, strict=True):
            t.create(self.prefix, self.devices, rows)
            t.create_slots(self.prefix, updates.optimizer_of(self.optimizer, t))

    def write_layout(self) -> None:
        """Tells the other workers how tables are divided."""
        flags = [int(t.by_row) for t in self.tables] or [0]
        self._layout.assign(tf.constant(flags, tf.int32))

    def read_layout(self) -> list[bool]:
        """How the chief has divided the tables."""
        flags = self._layout.value().numpy()
        return [bool(f) for f in flags[: len(self.tables)]]

    def initialize(self) -> None:
        """First values: as a single process would draw them, one table after the other."""
        for t in self.tables:
            rule = updates.optimizer_of(self.optimizer, t).update_rule
            t.initialize()
            for slots in t.slots:
                for slot, name in zip(slots, rule.slot_names, strict=True):
                    slot.fill(rule.initial_value(name))
        for shared in self.shared_variables:
            shared.initialize()
        self.step.assign(tf.constant(0, tf.int64))

    def reset_counters(self) -> None:
        """Those of the processes at work, which are no part of checkpoints.

        Generations never come again: a server that was not killed still has the queues of the old
        ones, and what was left in them.
        """
        first = time.time_ns() // GENERATIONS * GENERATIONS
        self.generation.assign(tf.constant(first, tf.int64))
        self.worker_steps.fill(0)
