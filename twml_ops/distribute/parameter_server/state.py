"""The shared state of a run on its servers: tables, slots, the step and shared dense weights.

`RunState` also has the notes by which processes that start or restart recognize what the servers
have: markers (whether the values of all servers are of one initialization), whether a synchronous
update has begun and not ended, and which workers have finished. `failures` uses them.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import _keras
from twml_ops.distribute.parameter_server.cluster import Cluster, ClusterError
from twml_ops.distribute.parameter_server.division import Division, divide
from twml_ops.distribute.parameter_server.dynamic_rows import RemoteLookup
from twml_ops.distribute.parameter_server.rows_in_files import (
    PartInFile,
    fill_files,
    is_in_files,
    open_files,
    put_in_files,
)
from twml_ops.distribute.parameter_server.tables import RemoteLock, RemoteTable, RemoteVariable
from twml_ops.distribute.parameter_server.worker_token import WorkerToken
from twml_ops.ops._tape import tf_variable
from twml_ops.optimizers.update_rules import SGDRule
from twml_ops.placement import Tiered
from twml_ops.planning import WAYS, ShardedTable

GENERATIONS = 1 << 20
"""The most generations of queues between two initializations of the servers. The first generation
is a time in nanoseconds, rounded down to a multiple of this, about 1 ms."""

_POLL_SECONDS = 0.05


def component_optimizers(optimizer: Any) -> list[Any]:
    """Returns the optimizers of a `CompositeOptimizer`, or the optimizer itself in a list."""
    return list(getattr(optimizer, "all_optimizers", [optimizer]))


class _NoUpdates:
    """In the place of the optimizer of a frozen table, which has no slots."""

    update_rule = SGDRule()


def optimizer_of(optimizer: Any, variable: Any) -> Any:
    """Returns the optimizer that trains `variable`, which a `CompositeOptimizer` chooses."""
    if isinstance(variable, RemoteTable) and not variable.trainable:
        return _NoUpdates
    choose = getattr(optimizer, "optimizer_of", None)
    return optimizer if choose is None else choose(variable)


class SharedVariable:
    """A dense weight of the model and the copy on a server that all workers share.

    Args:
        prefix: Prefix of the names of all variables.
        index: The number of the weight.
        local: The weight in this process' model.
        device: The device of the server.
        optimizer: The optimizer that trains the weight; None: it is not trained.

    Attributes:
        local: The weight in this process' model.
        remote: The copy on the server.
        lock: A lock for changes of the copy that are not one op.
        trained: Whether an optimizer trains the weight.
        slots: The optimizer's slots on the server; none for a weight that is not trained.
    """

    def __init__(self, prefix: str, index: int, local: Any, device: str, optimizer: Any) -> None:
        self.local = local
        shape, dtype = tuple(local.shape), tf.as_dtype(local.dtype)
        self.remote = RemoteVariable(f"{prefix}/dense/{index}", shape, dtype, device)
        self.lock = RemoteLock(f"{prefix}/dense/{index}/lock", device)
        self.trained = optimizer is not None
        self.slots: list[RemoteVariable] = []
        self._initial_slots: list[float] = []
        if optimizer is None:
            return
        for slot in optimizer.update_rule.slots(shape, dtype):
            name = f"{prefix}/dense/{index}/{slot.name}"
            self.slots.append(RemoteVariable(name, slot.shape, slot.dtype, device))
            self._initial_slots.append(slot.initial_value)

    def push(self) -> None:
        """Copies this process' value to the server."""
        self.remote.assign(tf_variable(self.local).read_value())

    def initialize(self) -> None:
        """Copies this process' value to the server and sets the slots to their initial values."""
        self.push()
        for slot, value in zip(self.slots, self._initial_slots, strict=True):
            slot.fill(value)


class RunState:
    """All shared variables of one run.

    A marker on each server identifies the initialization or restore that its values come from. If
    all servers have the same marker, their values are complete, and a worker that starts or
    restarts continues with them.

    Args:
        prefix: Prefix of the names of all variables.
        cluster: The cluster.
        tables: The tables of the model.
        model: The model, which is built.
        optimizer: The optimizer of all weights.
        share_dense: Whether workers share the dense weights on the servers. A single worker keeps
            them.
        steps_before: The updates that the optimizer has made before the run.
        lookups: The lookups of rows of ids.
        storage: Where tables have their rows whose parts have more rows than its cache; None: all
            tables are in the memory of the servers.

    Attributes:
        steps_before: The updates that the optimizer has made before the run.
        step: int64, the steps of all workers.
        generation: int64, the generation of the queues of synchronous workers.
        updating: int64, 1 while the leader of synchronous workers updates the shared variables.
        worker_steps: int64 [workers], the steps of each asynchronous worker.
        joined: int64 [workers], how often each synchronous worker has joined a generation.
        snapshots: int64, the snapshots in the averages of the weights.
        worker_token: Tells servers which process is this worker of the run.
        markers: int64, on each server: of which initialization or restore its values are.
        tables: The tables.
        lookups: The lookups of rows of ids.
        shared_variables: The dense weights on the servers that workers have copies of; empty
            without `share_dense`.
        module_weights: The dense weights that only the server of a table reads and trains; none
            before `create`.
    """

    def __init__(
        self,
        prefix: str,
        cluster: Cluster,
        tables: Sequence[RemoteTable],
        model: tf.keras.Model,
        optimizer: Any,
        share_dense: bool,
        steps_before: int = 0,
        lookups: Sequence[RemoteLookup] = (),
        storage: Tiered | None = None,
    ) -> None:
        self.prefix = prefix
        self._storage = storage
        self.steps_before = steps_before
        self.devices = cluster.devices
        self.worker_token = WorkerToken(prefix, cluster)
        self.tables = list(tables)
        self.lookups = list(lookups)
        self.optimizer = optimizer
        self.step = RemoteVariable(f"{prefix}/step", [], tf.int64, self.devices[0])
        self.generation = RemoteVariable(f"{prefix}/generation", [], tf.int64, self.devices[0])
        self.updating = RemoteVariable(f"{prefix}/updating", [], tf.int64, self.devices[0])
        workers = len(cluster.workers)
        name = f"{prefix}/steps_of"
        self.worker_steps = RemoteVariable(name, [workers], tf.int64, self.devices[0])
        self.joined = RemoteVariable(f"{prefix}/joined", [workers], tf.int64, self.devices[0])
        self.snapshots = RemoteVariable(f"{prefix}/snapshots", [], tf.int64, self.devices[0])
        self._finished, self._reached = (
            [
                RemoteVariable(f"{prefix}/{what}/{i}", [], tf.int64, self.devices[0])
                for i in range(workers)
            ]
            for what in ("finished", "reached")
        )
        self._layout = RemoteVariable(f"{prefix}/layout", [None, 4], tf.int64, self.devices[0])
        states = map(tf_variable, _keras.random_states(model))
        self._own_seeds = [zlib.crc32(state.numpy().tobytes()) for state in states]
        self._seeds = RemoteVariable(
            f"{prefix}/seeds", [len(self._own_seeds)], tf.int64, self.devices[0]
        )
        self.markers = [RemoteVariable(f"{prefix}/marker", [], tf.int64, d) for d in self.devices]
        self.trained = list(model.trainable_variables)
        self.shared_variables: list[SharedVariable] = []
        self.module_weights: list[SharedVariable] = []
        self.dense_weights = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
        if share_dense:
            with_module = [t.module for t in self.tables if t.module is not None]
            of_modules = {id(v) for module in with_module for v in module.local}
            for i, v in enumerate(self.dense_weights):
                if id(v) not in of_modules:
                    device = self.devices[i % len(self.devices)]
                    self.shared_variables.append(self._shared(v, device))

    def _shared(self, weight: Any, device: str) -> SharedVariable:
        """Returns the copy of a dense weight on a server."""
        number = next(i for i, v in enumerate(self.dense_weights) if v is weight)
        is_trained = any(v is weight for v in self.trained)
        trainer = optimizer_of(self.optimizer, weight) if is_trained else None
        return SharedVariable(self.prefix, number, weight, device, trainer)

    @property
    def remote_weights(self) -> list[SharedVariable]:
        """All dense weights that are on servers."""
        return [*self.shared_variables, *self.module_weights]

    def marker(self) -> int:
        """Returns the marker of all servers; 0 if one has none or they differ."""
        markers = {int(m.value().numpy()) if m.exists() else 0 for m in self.markers}
        return markers.pop() if len(markers) == 1 else 0

    def wait_for_marker(self, timeout: float) -> None:
        """Waits until the chief has initialized the servers.

        Args:
            timeout: Limit in seconds.

        Raises:
            ClusterError: The chief has not done so within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.marker():
            if time.monotonic() > deadline:
                raise ClusterError(f"the chief has not initialized the servers in {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def is_torn(self) -> bool:
        """Tells whether a synchronous leader has ended in the middle of an update."""
        return self.updating.exists() and bool(self.updating.value().numpy())

    def finish(self, worker: int) -> bool:
        """Notes that a worker needs the servers no more.

        Args:
            worker: The number of the worker.

        Returns:
            Whether no worker needs the servers.
        """
        self._finished[worker].assign(tf.constant(1, tf.int64))
        return all(bool(each.value().numpy()) for each in self._finished)

    def has_finished(self, worker: int) -> bool:
        """Tells whether a worker has noted that it needs the servers no more.

        Args:
            worker: The number of the worker.
        """
        flag = self._finished[worker]
        return flag.exists() and bool(flag.value().numpy())

    def reach(self, worker: int, step: int) -> None:
        """Records that a worker has trained up to a step, and waits there for the chief.

        Args:
            worker: The number of the worker.
            step: The step.
        """
        self._reached[worker].assign(tf.constant(step, tf.int64))

    def all_have_reached(self, step: int) -> bool:
        """Tells whether all workers have called `reach` with this step or a later one.

        Args:
            step: The step.
        """
        return all(int(each.numpy()) >= step for each in self._reached)

    def variables(self) -> list[RemoteVariable]:
        """All variables of the run on the servers, whether they have values or not.

        Returns:
            The variables, markers first.
        """
        shared = [v for s in self.remote_weights for v in (s.remote, *s.slots)]
        tables = [
            v for t in self.tables for v in (*t.shards, *(v for slots in t.slots for v in slots))
        ]
        single = [self.step, self.generation, self.updating, self.worker_steps, self.joined]
        single += [self._layout, self._seeds, self.snapshots, *self._finished, *self._reached]
        lookups = [v for each in self.lookups for v in each.all_variables()]
        return [*self.markers, *self.worker_token.variables, *single, *shared, *tables, *lookups]

    def set_updating(self, updating: bool) -> tf.Operation:
        """Notes that an update begins or has ended. Used in a graph.

        Args:
            updating: Whether it begins.

        Returns:
            The op that writes the note.
        """
        with tf.device(self.updating.device):
            value = tf.constant(int(updating), tf.int64)
            return tf.raw_ops.AssignVariableOp(resource=self.updating.handle, value=value)

    def invalidate(self) -> None:
        """Clears the markers, before the servers are initialized, so that no worker uses them."""
        for marker in self.markers:
            marker.assign(tf.constant(0, tf.int64))

    def validate(self) -> None:
        """Sets the markers, after all servers are initialized."""
        marker = tf.constant(time.time_ns(), tf.int64)
        for m in self.markers:
            m.assign(marker)

    def create(self, divisions: Sequence[Division]) -> None:
        """Creates the handles of the shards and slots of all tables, and of weights of modules.

        Args:
            divisions: For each table, its parts and their servers.
        """
        for t, division in zip(self.tables, divisions, strict=True):
            optimizer = optimizer_of(self.optimizer, t)
            if is_in_files(t, division, self._storage):
                assert self._storage is not None
                put_in_files(t, self.prefix, self.devices, division, self._storage, optimizer)
            else:
                t.create(self.prefix, self.devices, division)
                t.create_slots(self.prefix, optimizer)
            if t.module is not None:
                t.module.shared = [self._shared(v, t.shards[0].device) for v in t.module.local]
                self.module_weights += t.module.shared
        for lookup in self.lookups:
            slots: list[float] = []
            if lookup.table is not None:
                rule = optimizer_of(self.optimizer, lookup.table).update_rule
                slots = [rule.initial_value(name) for name in rule.slot_names]
            lookup.create(self.prefix, self.devices, slots)

    def open_files(self) -> None:
        """Creates the files of tables whose rows are in files, before values are assigned.

        Raises:
            ValueError: A server cannot create a file.
        """
        for t in self.tables:
            open_files(t, optimizer_of(self.optimizer, t))

    def close_files(self) -> None:
        """Removes the tables whose rows are in files. The values of the run are incomplete then."""
        parts = [p for t in self.tables for p in t.shards if isinstance(p, PartInFile)]
        parts += [p for t in self.tables for s in t.slots for p in s if isinstance(p, PartInFile)]
        if parts:
            self.invalidate()
        for part in parts:
            part.destroy()
        for part in parts:
            part.exists()  # waits for the server

    def write_layout(self) -> None:
        """Tells the other workers the tables, how they are divided, whether in files, and seeds."""
        rows = []
        for t in self.tables:
            place, cached = t.division.place, self._cache_rows(t, t.division)
            rows.append([t.number, WAYS.index(place.way), place.first, cached])
        self._layout.assign(tf.constant(rows, tf.int64, [len(rows), 4]))
        self._seeds.assign(tf.constant(self._own_seeds, tf.int64, [len(self._own_seeds)]))

    def read_seeds(self) -> list[int]:
        """Reads the seeds of the random layers, which the chief's model has drawn for all workers.

        Returns:
            A number of 32 bits for each layer, in the order of `_keras.random_states`.
        """
        seeds: list[int] = self._seeds.value().numpy().tolist()
        return seeds

    def read_layout(self) -> list[Division]:
        """Reads how the chief has divided each table.

        Raises:
            ValueError: The chief has other tables on the servers, or their rows in other places.
        """
        rows = self._layout.value().numpy().tolist()
        expected, here = [number for number, *_ in rows], [t.number for t in self.tables]
        if expected != here:
            raise ValueError(
                "model, replicated_rows, partition_axis and plan must be equal in all processes of "
                f"a run: expected the tables {expected} on the servers, counted in the order of "
                f"the layers, as the chief has, got {here}"
            )
        found = []
        for table, (_, way, first, cached) in zip(self.tables, rows, strict=True):
            found.append(divide(ShardedTable(WAYS[way], first), len(self.devices)))
            own = self._cache_rows(table, found[-1])
            if own != cached:
                raise ValueError(
                    f"storage must be equal in all processes of a run: expected {cached} rows of "
                    f"{table.path} in each cache (0: it is in memory), as the chief has, got {own}"
                )
        return found

    def _cache_rows(self, table: RemoteTable, division: Division) -> int:
        """Returns the rows of the cache of each part of a table; 0: it is in memory."""
        storage = self._storage
        return storage.cache_rows if storage and is_in_files(table, division, storage) else 0

    def initialize(self) -> None:
        """Assigns initial values, which a single process would draw in the same order."""
        for t in self.tables:
            if fill_files(t):
                continue
            rule = optimizer_of(self.optimizer, t).update_rule
            t.initialize()
            for slots in t.slots:
                for slot, name in zip(slots, rule.slot_names, strict=True):
                    slot.fill(rule.initial_value(name))
        for lookup in self.lookups:
            lookup.initialize()
            lookup.push_initial_rows()
        for shared in self.remote_weights:
            shared.initialize()
        for counter in (self.step, self.snapshots):
            counter.assign(tf.constant(0, tf.int64))
        self.set_iterations(0)

    def set_iterations(self, step: int) -> None:
        """Gives the optimizer of this process its number of updates.

        Args:
            step: The step of the run.
        """
        for each in component_optimizers(self.optimizer):
            each.iterations.assign(tf.cast(step + self.steps_before, each.iterations.dtype))

    def reset_counters(self, new_generations: bool = True) -> None:
        """Resets the counters that are not part of checkpoints.

        Generations are never reused: a server that was not restarted still has the queues of old
        generations and what was left in them.

        Args:
            new_generations: Whether to begin a new series of generations. If not, the next
                generation closes the queues in which other workers wait.
        """
        if new_generations:
            first = time.time_ns() // GENERATIONS * GENERATIONS
            self.generation.assign(tf.constant(first, tf.int64))
        self.worker_steps.fill(0)
        self.joined.fill(0)
        for each in (*self._finished, *self._reached):
            each.fill(0)
        self.updating.assign(tf.constant(0, tf.int64))
