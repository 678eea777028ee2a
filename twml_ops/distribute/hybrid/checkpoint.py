"""Checkpoints of a run: each server writes and reads its own shards.

The folders and the manifests are made by `twml_ops.checkpoint`, which commits, finds and removes
them. The tensors are in bundles of TensorFlow: one of each server and one of the dense weights. The
manifest says how tables were sharded, so that a run with another number of servers or another axis
can read them. A checkpoint of changed rows is replayed on those before, shard by shard. All servers
and the chief must be able to reach the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    CheckpointWriter,
    Manifest,
    check_facts,
)
from twml_ops.checkpoint.facts import FACTS
from twml_ops.checkpoint.locations import Location
from twml_ops.checkpoint.manifest import MANIFEST, SHARDS
from twml_ops.distribute.hybrid import updates
from twml_ops.distribute.hybrid.changed_shards import ChangedShards
from twml_ops.distribute.hybrid.remote_table import RemoteTable, concat_shards
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.state import RunState
from twml_ops.ops._tape import tf_variable

IDS = "@ids"
DENSE = "dense"
MAX_TO_KEEP = 2
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)

_managers: dict[str, CheckpointManager] = {}  # whose locks this process keeps until its end


def manager_of(folder: str | os.PathLike[str]) -> CheckpointManager:
    """The manager of the checkpoints in a folder; one for all trainers of this process.

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
    changes: ChangedShards | None = None,
) -> str:
    """Writes a checkpoint and removes all older ones except the last.

    Args:
        state: The shared state of the run.
        folder: The folder of the checkpoints.
        facts: Facts about the run, as JSON has them, which `restore_newest` compares.
        changes: Which rows of the tables it has; None: all.

    Returns:
        The folder of the new checkpoint.

    Raises:
        tf.errors.OpError: A file cannot be written; `is_write_error` tells this from a server that
            has ended. The checkpoints before are unchanged.
        CheckpointError: The chief cannot write, or another process writes to the folder.
    """
    manager, step = manager_of(folder), int(state.step.value().numpy())

    def write(writer: CheckpointWriter, sequence: int) -> Manifest:
        try:
            return _write(state, writer, (sequence, step), facts, changes)
        except BaseException:
            # Several servers may have failed. An error that is still under way would be raised by
            # the next op on its server, which has nothing to do with it.
            tf.experimental.async_clear_error()
            raise

    path = manager.add(write, step)
    if changes is not None:
        changes.written(path.name, CheckpointReader(path).manifest.data_bytes)
    manager.keep_last()
    return str(path)


def is_write_error(error: BaseException) -> bool:
    """Whether an error of `save` says that files cannot be written.

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
    changes: ChangedShards | None,
) -> Manifest:
    folder = writer.folder

    def is_there(name: str) -> bool:
        return (folder.parent / name / MANIFEST).exists()

    base = None if changes is None else changes.begin(is_there)
    by_device = _table_variables(state)
    by_rows: list[str] = []
    for device, variables in by_device.items():
        tensors = {name: v.value() for name, v in variables.items()}
        if changes is not None:
            tensors = _changed_tensors(variables, changes, base, by_rows)
        with tf.device(device):
            _write_bundle(folder / _server_file(state, device), tensors)
    # All ops were sent before, so that the servers write in parallel.
    for variables in by_device.values():
        next(iter(variables.values())).wait()
    dense = {n: tf.identity(v.numpy()) for n, v in _dense_variables(state).items()}
    if dense:
        _write_bundle(folder / DENSE, dense)
    for device in by_device:
        writer.add_bundle(_server_file(state, device))
    if dense:
        writer.add_bundle(DENSE)
    shards = {
        "tables": [_describe(t) for t in state.tables],
        "dense": {n: list(v.shape) for n, v in dense.items()},
        "servers": len(state.devices),
        "by_rows": sorted(set(by_rows)) if base is not None else [],
    }
    return writer.commit(*number, {SHARDS: shards, FACTS: dict(facts)}, base)


def _write_bundle(prefix: Location, tensors: Mapping[str, tf.Tensor]) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def restore_newest(
    state: RunState, folder: str, facts: Mapping[str, Any] | None, may_differ: Sequence[str] = ()
) -> CheckpointReader | None:
    """Restores the shared state of a run from the newest checkpoint that is not damaged.

    Args:
        state: The shared state of the run.
        folder: The folder of the checkpoints.
        facts: Facts about the run, with which the checkpoint must agree; None: any.
        may_differ: Names of facts in which they may differ.

    Returns:
        The checkpoint; None if there is none.

    Raises:
        CheckpointError: All checkpoints are damaged, or the newest is of a run with other facts, or
            another process writes to the folder.
        ValueError: It is of another model or optimizer.
    """
    manager = manager_of(folder)
    manager.lock()

    def read(checkpoint: CheckpointReader) -> None:
        if facts is not None:
            check_facts(checkpoint, facts, may_differ=may_differ)
        restore(state, checkpoint)

    return manager.newest_intact(read)


def restore(state: RunState, checkpoint: CheckpointReader) -> None:
    """Restores the shared state of a run from a checkpoint.

    Args:
        state: The shared state of the run.
        checkpoint: The checkpoint.

    Raises:
        CheckpointDamaged: A file is missing or damaged. Some of the state may be restored.
        ValueError: The checkpoint is of another model or optimizer.
    """
    chain = _Chain(checkpoint)
    path, shards = checkpoint.folder, chain.shards
    saved = [_identity(t) for t in shards["tables"]]
    expected = [_identity(_describe(t)) for t in state.tables]
    if saved != expected:
        raise ValueError(f"{path} is of another model: expected the tables {expected}, got {saved}")
    dense = _dense_variables(state)
    shapes = {n: list(v.shape) for n, v in dense.items()}
    if shapes != shards["dense"]:
        raise ValueError(
            f"{path} is of another model: expected the weights {shapes}, got {shards['dense']}"
        )
    sizes: list[tf.Tensor] = []
    with chain.reading():
        for i, (table, description) in enumerate(zip(state.tables, shards["tables"], strict=True)):
            for p, shard in enumerate(table.shards):
                names = [f"{i}", *(f"{i}/{s}" for s in description["slots"])]
                for name, variable in zip(names, [shard, *table.slots[p]], strict=True):
                    value = _restore(variable, name, table, p, description["by_row"], chain)
                    with tf.device(variable.device):
                        sizes.append(tf.raw_ops.Size(input=value))
        if dense:
            values = chain.values(DENSE, list(dense), [v.dtype for v in dense.values()])
            for variable, value in zip(dense.values(), values, strict=True):
                variable.assign(value)
        for size in sizes:  # raises the error of a server, which would be lost otherwise
            size.numpy()
        for shard in (shard for table in state.tables for shard in table.shards):
            shard.wait()
    step = checkpoint.manifest.step
    state.step.assign(tf.constant(step, tf.int64))
    for each in updates.component_optimizers(state.optimizer):
        each.iterations.assign(tf.cast(step, each.iterations.dtype))


def read(
    checkpoint: CheckpointReader, tables: Sequence[RemoteTable], model: tf.keras.Model
) -> dict[str, tf.Tensor]:
    """Reads tables and dense weights of a checkpoint into this process.

    Args:
        checkpoint: The checkpoint.
        tables: Tables without values, in the order in which a model of the same layers creates
            them.
        model: A model of the same layers, without tables, which gets the dense weights.

    Returns:
        The whole tables by name.

    Raises:
        CheckpointDamaged: A file is missing or damaged.
        ValueError: The checkpoint is of another model.
    """
    chain = _Chain(checkpoint)
    descriptions = chain.shards["tables"]
    weights = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
    saved = (
        [(d["shape"], d["dtype"]) for d in descriptions],
        _without_slots(chain.shards["dense"]),
    )
    expected = (
        [(list(t.shape), t.dtype.name) for t in tables],
        {f"{i}": list(v.shape) for i, v in enumerate(weights)},
    )
    if saved != expected:
        raise ValueError(
            f"{checkpoint.folder} is of another model: expected {expected}, got {saved}"
        )
    whole, values = {}, []
    with chain.reading():
        for i, (table, description) in enumerate(zip(tables, descriptions, strict=True)):
            shards = [chain.read_shard(s, f"{i}", table.dtype) for s in range(chain.servers)]
            whole[table.name] = _merge_shards(shards, description["by_row"], table.shape)
        if weights:
            names = [f"{i}" for i in range(len(weights))]
            values = chain.values(DENSE, names, [tf.as_dtype(v.dtype) for v in weights])
    for v, value in zip(weights, values, strict=True):
        tf_variable(v).assign(value)
    return whole


def _without_slots(dense: dict[str, list[int]]) -> dict[str, list[int]]:
    return {name: shape for name, shape in dense.items() if "/" not in name}


class _Chain:
    """A checkpoint of a cluster with the checkpoints that it is based on."""

    def __init__(self, checkpoint: CheckpointReader) -> None:
        self._newest, self._chain = checkpoint, checkpoint.chain()
        for each in self._chain:
            if SHARDS not in each.manifest.values:
                raise CheckpointError(f"{each.folder}: is no checkpoint of a cluster")
            each.verify_files()
        self.shards = checkpoint.manifest.values[SHARDS]
        self.servers = int(self.shards["servers"])

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turns an error of TensorFlow into `CheckpointDamaged`, if a file is damaged."""
        try:
            yield
        except tf.errors.OpError:  # of a damaged file, of one that was removed, or a lost server
            tf.experimental.async_clear_error()
            self._newest.verify()
            raise

    def read_shard(self, server: int, name: str, dtype: tf.DType) -> tf.Tensor:
        """The tensor `name` of one of the servers that wrote the checkpoint, with its changes."""
        file = f"server-{server}-of-{self.servers}"
        value: Any = None
        for each in self._chain:
            if name not in each.manifest.values[SHARDS]["by_rows"]:
                (value,) = _values(each, file, [name], [dtype])
                continue
            ids, rows = _values(each, file, [_ids_of(name), name], [tf.int64, dtype])
            # The raw op, because the wrapper of TensorFlow asks for shapes of remote tensors.
            indices = tf.raw_ops.ExpandDims(input=ids, axis=tf.constant(1))
            value = tf.raw_ops.TensorScatterUpdate(tensor=value, indices=indices, updates=rows)
        return value

    def values(
        self, file: str, names: Sequence[str], dtypes: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Tensors of the newest checkpoint."""
        return _values(self._newest, file, names, dtypes)


def _restore(
    variable: RemoteVariable, name: str, table: RemoteTable, p: int, by_row: bool, chain: _Chain
) -> tf.Tensor:
    with tf.device(variable.device):
        if chain.servers == len(table.shards) and by_row == table.by_row:
            value = chain.read_shard(p, name, variable.dtype)
        else:
            shards = [chain.read_shard(s, name, variable.dtype) for s in range(chain.servers)]
            # The shape of a remote tensor would wait for the server while it holds Python's lock.
            shape = table.shape[: variable.shape.rank]
            whole = _merge_shards(shards, by_row, shape)
            has_columns = table.by_row or shape.rank > 1
            value = tf.identity(table.slice_shard(whole, p)) if has_columns else whole
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    return value


def _values(
    checkpoint: CheckpointReader, file: str, names: Sequence[str], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Reads the tensors `names` from a file of a checkpoint."""
    values: list[tf.Tensor] = tf.raw_ops.RestoreV2(
        prefix=str(checkpoint.folder / file),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=dtypes,
    )
    return values


def _merge_shards(shards: Sequence[tf.Tensor], by_row: bool, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the whole table, or a whole slot of it."""
    if len(shards) == 1:
        return shards[0]
    # A slot with one number a row becomes the mean over the columns of each shard.
    if not by_row and shape.rank == 1:
        return tf.add_n(list(shards)) / len(shards)
    return concat_shards(shards, by_row, shape[0])


def _table_variables(state: RunState) -> dict[str, dict[str, RemoteVariable]]:
    """Returns the shards and slots of each server: device -> name -> variable."""
    result: dict[str, dict[str, RemoteVariable]] = {}
    for i, table in enumerate(state.tables):
        optimizer = updates.optimizer_of(state.optimizer, table)
        for shard, slots in zip(table.shards, table.slots, strict=True):
            variables = result.setdefault(shard.device, {})
            variables[f"{i}"] = shard
            names = optimizer.update_rule.slot_names
            variables.update({f"{i}/{s}": v for s, v in zip(names, slots, strict=True)})
    return result


def _changed_tensors(
    variables: dict[str, RemoteVariable],
    changes: ChangedShards,
    base: str | None,
    by_rows: list[str],
) -> dict[str, tf.Tensor]:
    """What a checkpoint has of the shards of one server; adds the names of shards by rows."""
    tensors: dict[str, tf.Tensor] = {}
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
            tensors[_ids_of(name)] = ids
            by_rows += group
    return tensors


def _ids_of(name: str) -> str:
    """The name of the tensor with the numbers of the rows of a table or one of its slots."""
    return name.partition("/")[0] + IDS


def _dense_variables(state: RunState) -> dict[str, Any]:
    """Returns the dense weights and their slots, shared or of this process: name -> variable."""
    result: dict[str, Any] = {}
    if state.shared_variables:
        for i, shared in enumerate(state.shared_variables):
            result[f"{i}"] = shared.remote
            result.update({f"{i}/{j}": slot for j, slot in enumerate(shared.slots)})
        return result
    trained = {id(v) for v in state.trained}
    for i, v in enumerate(state.dense_weights):
        result[f"{i}"] = tf_variable(v)
        if id(v) in trained:
            optimizer = updates.optimizer_of(state.optimizer, v)
            for j, slot in enumerate(optimizer.slots_of(v)):
                result[f"{i}/{j}"] = slot
    return result


def _describe(table: RemoteTable) -> dict[str, Any]:
    slots = [s.name.rpartition("/")[2] for s in table.slots[0]]
    shape, dtype = list(table.shape), table.dtype.name
    return {
        "name": table.name, "shape": shape, "dtype": dtype, "slots": slots, "by_row": table.by_row
    }  # fmt: skip


def _identity(description: dict[str, Any]) -> dict[str, Any]:
    """Returns what must be equal in a checkpoint and a run.

    The axis may differ, and so may the name, in which Keras numbers layers.
    """
    return {k: v for k, v in description.items() if k not in ("by_row", "name")}


def _server_file(state: RunState, device: str) -> str:
    return f"server-{state.devices.index(device)}-of-{len(state.devices)}"
