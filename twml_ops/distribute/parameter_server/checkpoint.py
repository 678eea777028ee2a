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
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.checkpoint import CheckpointManager, CheckpointReader, CheckpointWriter, Manifest
from twml_ops.checkpoint.baseline_policy import Policy, baseline_pays, check_policy
from twml_ops.checkpoint.facts import FACTS
from twml_ops.checkpoint.list_checkpoints import names_in_chain
from twml_ops.checkpoint.locations import Location
from twml_ops.checkpoint.manifest import SHARDS
from twml_ops.distribute.parameter_server.rows_in_files import PartInFile
from twml_ops.distribute.parameter_server.state import RunState, optimizer_of
from twml_ops.distribute.parameter_server.tables import RemoteTable, RemoteVariable
from twml_ops.distribute.parameter_server.weight_averages import WeightAverages
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable

IDS = "@ids"
MEAN = "@mean"
NEW_ROWS = "@new"
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
    by_device = _parts_by_device(state)
    by_rows: list[str] = []
    # Before all parts of tables, so that a part is never older than what a lookup says of its rows.
    lookups = _tensors_of_lookups(state)
    in_pieces: dict[Location, list[_Piece]] = {}
    bundles: dict[Location, list[Location]] = {}  # that will be one
    for device, parts in by_device.items():
        tensors: dict[str, tf.Tensor] = {}
        for part in parts:
            tensors |= _tensors_of_part(part, lookups.recent, changes, base, by_rows)
        tensors |= lookups.tensors.get(device, {})
        for i, of_parts in enumerate(means):
            tensors |= {name_of_mean(i): m.value() for m in of_parts if m.device == device}
        file = folder / _file_of(state, device)
        left = {n: v for part in parts for n, v in part.variables.items() if n not in tensors}
        if left:
            in_pieces[file], bundles[file] = _pieces(left), []
            file = file.parent / f"{file.name}.memory"
        if tensors:
            bundles.setdefault(folder / _file_of(state, device), []).append(file)
            with tf.device(device):
                _write_bundle(file, tensors)
    # All ops were sent before, so that the servers write in parallel.
    for marker in state.markers:
        if marker.device in by_device:
            marker.wait()
    _write_pieces(in_pieces, bundles)
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
        "new_rows": [i for i, t in enumerate(state.tables) if _is_shared(t)],
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


class _Part(NamedTuple):
    """A part of a table, and the variables of it, the shard first, by their names in files."""

    table: RemoteTable
    number: int
    variables: dict[str, RemoteVariable]


class _Lookups(NamedTuple):
    """The values of lookups by device and name, and `SharedRows.recent` of asynchronous workers."""

    tensors: dict[str, dict[str, tf.Tensor]]
    recent: dict[int, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Neighboring rows of a part of a table and of its slots, which are written at once.

    Attributes:
        parts: The part and its slots by the names of their tensors.
        begin: The first row.
        end: The row after the last one.
    """

    parts: Mapping[str, PartInFile]
    begin: int
    end: int

    def write(self, prefix: Location) -> None:
        """Writes a bundle, on the server."""
        parts = list(self.parts.values())
        tensors = [part.read(self.begin, self.end) for part in parts]
        with tf.device(parts[0].device):
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=list(self.parts),
                shape_and_slices=[part.slice_name(self.begin, self.end) for part in parts],
                tensors=tensors,
            )

    def wait(self) -> None:
        """Waits until the server has run what was sent to it."""
        next(iter(self.parts.values())).wait()


def _pieces(parts: Mapping[str, Any]) -> list[_Piece]:
    """Returns the pieces of the parts of tables, and of their slots, that a server has in files."""
    found = []
    for name, table in parts.items():
        if "/" not in name:
            group = {n: part for n, part in parts.items() if n.partition("/")[0] == name}
            found += [_Piece(group, begin, end) for begin, end in table.pieces()]
    return found


def _write_pieces(
    by_file: Mapping[Location, Sequence[_Piece]], bundles: Mapping[Location, list[Location]]
) -> None:
    """Writes pieces as bundles, of which each server then makes one bundle.

    A server has one piece in memory, and all servers write in parallel. A training that goes on
    meanwhile may change rows between two pieces.

    Args:
        by_file: The pieces of each server by the prefix of its bundle.
        bundles: The prefixes of other bundles that become a part of this bundle.
    """
    for number in range(max(map(len, by_file.values()), default=0)):
        each = [(file, pieces[number]) for file, pieces in by_file.items() if number < len(pieces)]
        for file, piece in each:
            bundles[file].append(file.parent / f"{file.name}.piece-{number}")
            piece.write(bundles[file][-1])
        for _, piece in each:
            piece.wait()
    for file, pieces in by_file.items():
        with tf.device(next(iter(pieces[0].parts.values())).device):
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[str(prefix) for prefix in bundles[file]],
                destination_prefix=str(file),
                delete_old_dirs=False,
            )
    for pieces in by_file.values():
        pieces[0].wait()


def _parts_by_device(state: RunState) -> dict[str, list[_Part]]:
    """Returns the parts of tables of each server that has parts or lookups."""
    result: dict[str, list[_Part]] = {}
    for i, table in enumerate(state.tables):
        names = optimizer_of(state.optimizer, table).update_rule.slot_names
        for number, (shard, slots) in enumerate(zip(table.shards, table.slots, strict=True)):
            variables = {f"{i}": shard}
            variables |= {f"{i}/{s}": v for s, v in zip(names, slots, strict=True)}
            result.setdefault(shard.device, []).append(_Part(table, number, variables))
    for lookup in state.lookups:
        result.setdefault(lookup.variables["header"].device, [])
    return result


def _is_shared(table: RemoteTable) -> bool:
    """Tells whether asynchronous workers may give rows of a table to ids meanwhile."""
    return table.lookup is not None and table.lookup.shared is not None


def _tensors_of_lookups(state: RunState) -> _Lookups:
    found = _Lookups({}, {})
    for lookup in state.lookups:
        number, variables = lookup.number, lookup.variables
        if lookup.shared is None:
            values = {name: v.value() for name, v in variables.items()}
        else:
            values, found.recent[number] = lookup.shared.snapshot_of_lookup(variables)
        of_device = found.tensors.setdefault(variables["header"].device, {})
        of_device |= {name_of_lookup(number, name): value for name, value in values.items()}
    return found


def _tensors_of_part(
    part: _Part,
    recent: Mapping[int, tf.Tensor],
    changes: ChangedRows | None,
    base: str | None,
    by_rows: list[str],
) -> dict[str, tf.Tensor]:
    """Returns what a checkpoint has of a part.

    Adds the names of the tensors that consist of some rows only to `by_rows`. All rows of tables
    in files are left out.
    """
    variables, name = part.variables, next(iter(part.variables))
    shard, tensors = variables[name], dict[str, tf.Tensor]()

    def read_at_once(read: Callable[[], Any]) -> Any:
        if not _is_shared(part.table):
            return read()
        lookup = part.table.lookup
        known = recent[lookup.number]
        rows, found = lookup.shared.snapshot_of_part(part.table, part.number, known, read)
        tensors[name_of_new_rows(name)] = rows
        return found

    if changes is None:
        in_memory = {n: v for n, v in variables.items() if not isinstance(v, PartInFile)}
        values = read_at_once(lambda: [v.value() for v in in_memory.values()])
        return tensors | dict(zip(in_memory, values, strict=True))
    group = {n: v for n, v in variables.items() if v.shape.rank and v.shape[0] == shard.shape[0]}
    in_pieces = base is None and isinstance(shard, PartInFile)
    ids, rows = changes.take(list(group.values()), read_at_once, copies=not in_pieces)
    if in_pieces:
        return tensors
    tensors |= dict(zip(group, rows, strict=True))
    tensors |= {n: v.value() for n, v in variables.items() if n not in group}
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


def name_of_new_rows(name: str) -> str:
    """Returns the name of the tensor with the rows of a table that begin anew when it is read."""
    return name + NEW_ROWS


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

    def take(
        self,
        variables: Sequence[RemoteVariable],
        read: Callable[[Callable[[], Any]], Any],
        copies: bool = True,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Copies the changed rows of a shard and its slots, on its server.

        Args:
            variables: The shard, and the slots that have a row for each row of the shard.
            read: Calls a function that reads the variables, and returns the result.
            copies: Whether the rows are copied if the checkpoint has all of them.

        Returns:
            The numbers of the rows, int64 [C], and for each variable [C, ...]. If the checkpoint
            has no base, all rows.
        """
        shard = variables[0]

        def copy() -> Any:
            return library.loaded.twml_take_changed_rows(
                [v.handle for v in variables],
                tf.constant(self._next_consumer, tf.int64),
                dtypes=[v.dtype for v in variables],
                copies=copies,
            )

        with tf.device(shard.device):
            ids, everything, interval, rows = read(copy)
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
