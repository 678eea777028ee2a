"""How a checkpoint of a run is written: each server writes its own shards.

The folders and the manifests are made by `twml_ops.checkpoint`, which commits, finds and removes
them. The tensors are in bundles of TensorFlow: one of each server and one of the dense weights. The
manifest says how tables were divided, so that a run with another number of servers or another plan
can read them. `ChangedRows` decides which rows of the tables a checkpoint has. All servers and the
chief must be able to reach the folder. `restore` reads checkpoints.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.checkpoint import CheckpointManager, CheckpointReader, CheckpointWriter, Manifest
from twml_ops.checkpoint.baseline_policy import Policy, baseline_pays, check_policy
from twml_ops.checkpoint.facts import FACTS
from twml_ops.checkpoint.list_checkpoints import names_in_chain
from twml_ops.checkpoint.locations import Location
from twml_ops.checkpoint.manifest import SHARDS
from twml_ops.distribute.parameter_server.state import RunState, optimizer_of
from twml_ops.distribute.parameter_server.tables import RemoteTable, RemoteVariable
from twml_ops.distribute.parameter_server.weight_averages import WeightAverages
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable

IDS = "@ids"
MEAN = "@mean"
DENSE = "dense"
LOOKUP = "lookup"
MAX_TO_KEEP = 2
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)

_managers: dict[str, CheckpointManager] = {}  # whose locks this process keeps until its end


def manager_of(folder: str | os.PathLike[str]) -> CheckpointManager:
    """Returns the manager of the checkpoints in a folder, one for all trainers of this process.

    Args:
        folder: The folder of the checkpoints, or an address of TensorFlow's file systems.
    """
    name = str(folder) if "://" in str(folder) else os.path.abspath(folder)
    if name not in _managers:
        _managers[name] = CheckpointManager(name, keep=MAX_TO_KEEP, background=False)
    return _managers[name]


def save(
    state: RunState,
    folder: str,
    facts: Mapping[str, Any],
    changes: ChangedRows | None = None,
    averages: WeightAverages | None = None,
    keep: int = MAX_TO_KEEP,
) -> str:
    """Writes a checkpoint and removes all but the last ones, and the ones that these need.

    Args:
        state: The shared state of the run.
        folder: The folder of the checkpoints.
        facts: Facts about the run, as JSON has them, which `restore_newest` compares.
        changes: Which rows of the tables it has; None: all.
        averages: The averages of the weights; None: there are none.
        keep: How many are kept.

    Returns:
        The folder of the new checkpoint.

    Raises:
        tf.errors.OpError: A file cannot be written; `is_write_error` tells this from a server that
            has ended. The checkpoints before are unchanged.
        CheckpointError: The chief cannot write, or another process writes to the folder.
        WorkerReplacedError: Another process has taken the place of the chief.
    """
    manager, step = manager_of(folder), int(state.step.value().numpy())

    def write(writer: CheckpointWriter, sequence: int) -> Manifest:
        try:
            return _write(state, writer, (sequence, step), facts, changes, averages)
        except BaseException:
            # Several servers may have failed. An error that is still under way would be raised by
            # the next op on its server, which has nothing to do with it.
            tf.experimental.async_clear_error()
            raise

    path = manager.add(write, step)
    if changes is not None:
        changes.written(path.name, CheckpointReader(path).manifest.data_bytes)
    manager.keep = keep  # trainers of one folder may keep different numbers
    manager.keep_last()
    return str(path)


def is_write_error(error: BaseException) -> bool:
    """Tells whether an error of `save` says that files cannot be written.

    Args:
        error: The error.

    Returns:
        True for a full disk, a limit, or a folder without permission to write.
    """
    return any(os.strerror(number) in str(error) for number in _WRITE_ERRORS)


def _write(
    state: RunState,
    writer: CheckpointWriter,
    number: tuple[int, int],
    facts: Mapping[str, Any],
    changes: ChangedRows | None,
    averages: WeightAverages | None,
) -> Manifest:
    folder = writer.folder
    snapshots = int(averages.count.numpy()) if averages is not None else 0
    means = averages.tables if averages is not None and snapshots else []

    def is_there(name: str) -> bool:
        return bool(names_in_chain(folder.parent / name))

    base = None if changes is None else changes.begin(is_there)
    by_device = _table_variables(state)
    by_rows: list[str] = []
    for device, variables in by_device.items():
        tensors = {name: v.value() for name, v in variables.items()}
        if changes is not None:
            tensors = _changed_tensors(variables, changes, base, by_rows)
        for i, parts in enumerate(means):
            tensors |= {name_of_mean(i): m.value() for m in parts if m.device == device}
        with tf.device(device):
            _write_bundle(folder / _file_of(state, device), tensors)
    # All ops were sent before, so that the servers write in parallel.
    for variables in by_device.values():
        next(iter(variables.values())).wait()
    dense = {n: tf.identity(v.numpy()) for n, v in dense_variables(state).items()}
    if dense:
        of_dense = averages.dense if averages is not None and snapshots else {}
        also = {name_of_mean(i): tf.identity(v.numpy()) for i, v in of_dense.items()}
        _write_bundle(folder / DENSE, {**dense, **also})
    for device in by_device:
        writer.add_bundle(_file_of(state, device))
    if dense:
        writer.add_bundle(DENSE)
    shards = {
        "tables": [describe(t) for t in state.tables],
        "dense": {n: list(v.shape) for n, v in dense.items()},
        "lookups": [lookup.describe() for lookup in state.lookups],
        "servers": len(state.devices),
        "snapshots": snapshots,
        "by_rows": sorted(set(by_rows)) if base is not None else [],
    }
    state.worker_token.check()
    return writer.commit(*number, {SHARDS: shards, FACTS: dict(facts)}, base)


def _write_bundle(prefix: Location, tensors: Mapping[str, tf.Tensor]) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def _table_variables(state: RunState) -> dict[str, dict[str, RemoteVariable]]:
    """Returns the shards, slots and lookups of each server: device -> name -> variable."""
    result: dict[str, dict[str, RemoteVariable]] = {}
    for i, table in enumerate(state.tables):
        optimizer = optimizer_of(state.optimizer, table)
        for shard, slots in zip(table.shards, table.slots, strict=True):
            variables = result.setdefault(shard.device, {})
            variables[f"{i}"] = shard
            names = optimizer.update_rule.slot_names
            variables.update({f"{i}/{s}": v for s, v in zip(names, slots, strict=True)})
    for lookup in state.lookups:
        for name, variable in lookup.variables.items():
            variables = result.setdefault(variable.device, {})
            variables[name_of_lookup(lookup.number, name)] = variable
    return result


def _changed_tensors(
    variables: dict[str, RemoteVariable],
    changes: ChangedRows,
    base: str | None,
    by_rows: list[str],
) -> dict[str, tf.Tensor]:
    """Returns what a checkpoint has of the shards of one server.

    Adds the names of the tensors that consist of some rows only to `by_rows`.
    """
    tensors = {n: v.value() for n, v in variables.items() if n.startswith(LOOKUP)}
    for name, shard in variables.items():
        if "/" in name:
            continue
        slots = {n: v for n, v in variables.items() if n.startswith(f"{name}/")}
        group = {name: shard}
        group |= {n: v for n, v in slots.items() if v.shape.rank and v.shape[0] == shard.shape[0]}
        ids, rows = changes.take(list(group.values()))
        tensors |= dict(zip(group, rows, strict=True))
        tensors |= {n: v.value() for n, v in slots.items() if n not in group}
        if base is not None:
            tensors[name_of_ids(name)] = ids
            by_rows += group
    return tensors


def _file_of(state: RunState, device: str) -> str:
    return server_file(state.devices.index(device), len(state.devices))


def name_of_mean(number: int) -> str:
    """Returns the name of the tensor with the average of a table or of a dense weight."""
    return f"{number}{MEAN}"


def name_of_lookup(number: int, name: str) -> str:
    """Returns the name of the tensor with a variable of a lookup."""
    return f"{LOOKUP}/{number}/{name}"


def name_of_ids(name: str) -> str:
    """Returns the name of the tensor with the row numbers of a table or of one of its slots."""
    return name.partition("/")[0] + IDS


def dense_variables(state: RunState) -> dict[str, Any]:
    """Returns the dense weights and their slots, here or on servers: name -> variable."""
    result: dict[str, Any] = {}
    remote = {id(s.local): s for s in state.remote_weights}
    trained = {id(v) for v in state.trained}
    for i, v in enumerate(state.dense_weights):
        if id(v) in remote:
            result[f"{i}"] = remote[id(v)].remote
            result.update({f"{i}/{j}": slot for j, slot in enumerate(remote[id(v)].slots)})
            continue
        result[f"{i}"] = tf_variable(v)
        if id(v) in trained:
            optimizer = optimizer_of(state.optimizer, v)
            for j, slot in enumerate(optimizer.slots_of(v)):
                result[f"{i}/{j}"] = slot
    return result


def describe(table: RemoteTable) -> dict[str, Any]:
    """Returns what the manifest says about a table."""
    slots = [s.name.rpartition("/")[2] for s in table.slots[0]]
    return {
        "name": table.name,
        "shape": list(table.shape),
        "dtype": table.dtype.name,
        "slots": slots,
        **dataclasses.asdict(table.division.place),
    }


def server_file(server: int, servers: int) -> str:
    """Returns the name of the file of server `server` of `servers`."""
    return f"server-{server}-of-{servers}"


class ChangedRows:
    """Decides for each checkpoint of a run which rows it has, and takes them on the servers.

    The record of changed rows is on the servers, so a chief or a server that was restarted begins
    with a checkpoint of all rows.

    Args:
        policy: See `twml_ops.checkpoint.TablePolicy`.

    Raises:
        ValueError: There is no such policy.
    """

    def __init__(self, policy: Policy) -> None:
        check_policy(policy)
        self._policy = policy
        self._base: str | None = None
        self._has_base = False
        self._consumer = self._next_consumer = secrets.randbits(62)
        self._taken: list[tuple[RemoteVariable, tf.Tensor]] = []
        self._followed: list[RemoteVariable] = []
        self._baseline_bytes, self._changed_bytes = 0, list[int]()

    def begin(self, exists: Callable[[str], bool]) -> str | None:
        """Begins a checkpoint.

        Args:
            exists: Whether a checkpoint of this name is complete.

        Returns:
            The name of the checkpoint whose changes the new one will have; None: it has all rows.
        """
        base, self._taken = self._base, []
        self._next_consumer = self._consumer
        pays = self._policy == "intermittent" and baseline_pays(
            self._baseline_bytes, self._changed_bytes
        )
        if pays or base is None or not exists(base):
            base, self._next_consumer = None, secrets.randbits(62)
        self._has_base = base is not None
        return base

    def take(self, variables: Sequence[RemoteVariable]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Copies the changed rows of a shard and its slots, on its server.

        Args:
            variables: The shard, and the slots that have a row for each row of the shard.

        Returns:
            The numbers of the rows, int64 [C], and for each variable [C, ...]. If the checkpoint
            has no base, all rows.
        """
        shard = variables[0]
        with tf.device(shard.device):
            ids, everything, interval, rows = library.loaded.twml_take_changed_rows(
                [v.handle for v in variables],
                tf.constant(self._next_consumer, tf.int64),
                dtypes=[v.dtype for v in variables],
            )
            # Without ids if all rows changed. A branch would wait for the server.
            count = tf.constant(int(shard.shape[0]), tf.int64) * tf.cast(everything, tf.int64)
            zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
            every = tf.raw_ops.Range(start=zero, limit=count, delta=one)
            ids = tf.raw_ops.ConcatV2(values=[every, ids], axis=tf.constant(0))
        self._taken.append((shard, interval))
        return ids, list(rows)

    def written(self, name: str, size: int) -> None:
        """Confirms that the checkpoint is complete. Otherwise the next one has its rows again.

        Args:
            name: The name of its folder.
            size: Its size in bytes.
        """
        if not self._has_base:
            for shard in self._followed:
                with tf.device(shard.device):
                    library.loaded.twml_release_changed_rows(
                        shard.handle, tf.constant(self._consumer, tf.int64)
                    )
            self._consumer = self._next_consumer
            self._followed = [shard for shard, _ in self._taken]
            self._baseline_bytes, self._changed_bytes = size, []
        else:
            self._changed_bytes.append(size)
        if not self._has_base or self._policy == "consecutive":
            self._base = name
            for shard, interval in self._taken:
                with tf.device(shard.device):
                    library.loaded.twml_keep_changed_rows(
                        shard.handle, tf.constant(self._consumer, tf.int64), interval
                    )
