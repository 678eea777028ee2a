"""Checkpoints of a run: each server writes and reads its own shards.

A checkpoint is a folder `ckpt-<step>-<time>`, which is valid only once it has a manifest. The
manifest says how tables were sharded, so that a run with another number of servers or another axis
can read them. A checkpoint of changed rows is replayed on those before, shard by shard. All servers
and the chief must be able to reach the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import updates
from twml_ops.distribute.hybrid.changed_shards import ChangedShards
from twml_ops.distribute.hybrid.checkpoint_files import (
    IDS,
    ShardsCheckpoint,
    chain_of,
    complete,
    list_all,
    read_manifest,
    remove_old,
    write_manifest,
)
from twml_ops.distribute.hybrid.remote_table import RemoteTable, concat_shards
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.state import RunState
from twml_ops.ops._tape import tf_variable

MAX_TO_KEEP = 2
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


def latest(folder: str) -> str | None:
    """Finds the newest complete checkpoint.

    Args:
        folder: The folder of the checkpoints.

    Returns:
        The folder of the checkpoint; None if there is none.
    """
    found = complete(list_all(folder))
    return found[-1] if found else None


def save(state: RunState, folder: str, changes: ChangedShards | None = None) -> str:
    """Writes a checkpoint and removes all older ones except the last.

    Args:
        state: The shared state of the run.
        folder: The folder of the checkpoints.
        changes: Which rows of the tables it has; None: all.

    Returns:
        The folder of the new checkpoint.

    Raises:
        tf.errors.OpError: A file cannot be written; `is_write_error` tells this from a server that
            has ended. The checkpoints before are unchanged.
    """
    step = int(state.step.value().numpy())
    path = posixpath.join(folder, f"ckpt-{step:012d}-{time.time_ns()}")
    try:
        tf.io.gfile.makedirs(path)
        _write(state, path, step, changes)
    except BaseException:
        # Several servers may have failed. An error that is still under way would be raised by the
        # next op on its server, which has nothing to do with it.
        tf.experimental.async_clear_error()
        with contextlib.suppress(tf.errors.OpError):  # it would fill the disk
            tf.io.gfile.rmtree(path)
        raise
    remove_old(folder, MAX_TO_KEEP)
    return path


def is_write_error(error: BaseException) -> bool:
    """Whether an error of `save` says that files cannot be written.

    Args:
        error: The error.

    Returns:
        True for a full disk, a limit, or a folder without permission to write.
    """
    return any(os.strerror(number) in str(error) for number in _WRITE_ERRORS)


def _write(state: RunState, path: str, step: int, changes: ChangedShards | None) -> None:
    base = None if changes is None else changes.begin()
    by_device = _table_variables(state)
    by_rows: list[str] = []
    for device, variables in by_device.items():
        tensors = {name: v.value() for name, v in variables.items()}
        if changes is not None:
            tensors = _changed_tensors(variables, changes, base, by_rows)
        with tf.device(device):
            tf.raw_ops.SaveV2(
                prefix=posixpath.join(path, _server_file(state, device)),
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
    # All ops were sent before, so that the servers write in parallel.
    for variables in by_device.values():
        next(iter(variables.values())).wait()
    dense = {n: tf.identity(v.numpy()) for n, v in _dense_variables(state).items()}
    if dense:
        tf.raw_ops.SaveV2(
            prefix=posixpath.join(path, "dense"),
            tensor_names=list(dense),
            shape_and_slices=[""] * len(dense),
            tensors=list(dense.values()),
        )
    manifest = {
        "step": step,
        "tables": [_describe(t) for t in state.tables],
        "dense": {n: list(v.shape) for n, v in dense.items()},
        "servers": len(state.devices),
    }
    if base is not None:
        manifest |= {"base": posixpath.basename(base), "by_rows": sorted(set(by_rows))}
    write_manifest(path, manifest)
    if changes is not None:
        changes.written(path, ShardsCheckpoint(path).data_bytes)


def restore(state: RunState, path: str) -> int:
    """Restores the shared state of a run from a checkpoint.

    Args:
        state: The shared state of the run.
        path: The folder of the checkpoint.

    Returns:
        The step of the checkpoint.

    Raises:
        ValueError: The checkpoint is of another model or optimizer.
    """
    manifest, chain = read_manifest(path), chain_of(path)
    saved = [_identity(t) for t in manifest["tables"]]
    expected = [_identity(_describe(t)) for t in state.tables]
    if saved != expected:
        raise ValueError(f"{path} is of another model: expected the tables {expected}, got {saved}")
    for i, (table, description) in enumerate(zip(state.tables, manifest["tables"], strict=True)):
        for p, shard in enumerate(table.shards):
            names = [f"{i}", *(f"{i}/{s}" for s in description["slots"])]
            for name, variable in zip(names, [shard, *table.slots[p]], strict=True):
                _restore(variable, name, table, p, description, chain, manifest["servers"])
    dense = _dense_variables(state)
    shapes = {n: list(v.shape) for n, v in dense.items()}
    if shapes != manifest["dense"]:
        raise ValueError(
            f"{path} is of another model: expected the weights {shapes}, got {manifest['dense']}"
        )
    if dense:
        values = _values(path, "dense", list(dense), [v.dtype for v in dense.values()])
        for variable, value in zip(dense.values(), values, strict=True):
            variable.assign(value)
    step = int(manifest["step"])
    state.step.assign(tf.constant(step, tf.int64))
    for each in updates.component_optimizers(state.optimizer):
        each.iterations.assign(tf.cast(step, each.iterations.dtype))
    return step


def read(
    path: str, tables: Sequence[RemoteTable], model: tf.keras.Model
) -> tuple[int, dict[str, tf.Tensor]]:
    """Reads tables and dense weights of a checkpoint into this process.

    Args:
        path: The folder of the checkpoint.
        tables: Tables without values, in the order in which a model of the same layers creates
            them.
        model: A model of the same layers, without tables, which gets the dense weights.

    Returns:
        The step of the checkpoint, and the whole tables by name.

    Raises:
        ValueError: The checkpoint is of another model.
    """
    manifest, chain = read_manifest(path), chain_of(path)
    descriptions, servers = manifest["tables"], manifest["servers"]
    weights = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
    saved = (
        [(d["shape"], d["dtype"]) for d in descriptions],
        _without_slots(manifest["dense"]),
    )
    expected = (
        [(list(t.shape), t.dtype.name) for t in tables],
        {f"{i}": list(v.shape) for i, v in enumerate(weights)},
    )
    if saved != expected:
        raise ValueError(f"{path} is of another model: expected {expected}, got {saved}")
    whole = {}
    for i, (table, description) in enumerate(zip(tables, descriptions, strict=True)):
        shards = [_read_shard(chain, s, servers, f"{i}", table.dtype) for s in range(servers)]
        whole[table.name] = _merge_shards(shards, description["by_row"], table.shape)
    values = []
    if weights:
        names = [f"{i}" for i in range(len(weights))]
        values = _values(path, "dense", names, [tf.as_dtype(v.dtype) for v in weights])
    for v, value in zip(weights, values, strict=True):
        tf_variable(v).assign(value)
    return int(manifest["step"]), whole


def _without_slots(dense: dict[str, list[int]]) -> dict[str, list[int]]:
    return {name: shape for name, shape in dense.items() if "/" not in name}


def _restore(
    variable: RemoteVariable,
    name: str,
    table: RemoteTable,
    p: int,
    description: dict[str, Any],
    chain: Sequence[str],
    servers: int,
) -> None:
    with tf.device(variable.device):
        if servers == len(table.shards) and description["by_row"] == table.by_row:
            value = _read_shard(chain, p, servers, name, variable.dtype)
        else:
            shards = [_read_shard(chain, s, servers, name, variable.dtype) for s in range(servers)]
            # The shape of a remote tensor would wait for the server while it holds Python's lock.
            shape = table.shape[: variable.shape.rank]
            whole = _merge_shards(shards, description["by_row"], shape)
            has_columns = table.by_row or shape.rank > 1
            value = tf.identity(table.slice_shard(whole, p)) if has_columns else whole
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _read_shard(
    chain: Sequence[str], server: int, servers: int, name: str, dtype: tf.DType
) -> tf.Tensor:
    """Reads the tensor `name` of one of the servers that wrote the checkpoint, with its changes."""
    file = f"server-{server}-of-{servers}"
    (value,) = _values(chain[0], file, [name], [dtype])
    for path in chain[1:]:
        if name not in read_manifest(path)["by_rows"]:
            (value,) = _values(path, file, [name], [dtype])
            continue
        ids, rows = _values(path, file, [_ids_of(name), name], [tf.int64, dtype])
        # The raw op, because the wrapper of TensorFlow asks for shapes of remote tensors.
        indices = tf.raw_ops.ExpandDims(input=ids, axis=tf.constant(1))
        value = tf.raw_ops.TensorScatterUpdate(tensor=value, indices=indices, updates=rows)
    return value


def _values(
    path: str, file: str, names: Sequence[str], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Reads the tensors `names` from a file of the checkpoint `path`."""
    values: list[tf.Tensor] = tf.raw_ops.RestoreV2(
        prefix=posixpath.join(path, file),
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
    """What a checkpoint has of the shards of one server; adds the names of those by rows."""
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
