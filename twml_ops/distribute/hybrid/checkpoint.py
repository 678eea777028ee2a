"""Checkpoints of a run: each server writes and reads its own shards.

A checkpoint is a folder `ckpt-<step>-<time>`, which is valid only once it has a manifest. The
manifest says how tables were sharded, so that a run with another number of servers or another axis
can read them. All servers and the chief must be able to reach the folder.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import updates
from twml_ops.distribute.hybrid.remote_table import RemoteTable, concat_shards
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.state import RunState
from twml_ops.ops._tape import tf_variable

MANIFEST = "manifest.json"
MAX_TO_KEEP = 2


def latest(folder: str) -> str | None:
    """Finds the newest complete checkpoint.

    Args:
        folder: The folder of the checkpoints.

    Returns:
        The folder of the checkpoint; None if there is none.
    """
    complete = _complete(_list_all(folder))
    return complete[-1] if complete else None


def save(state: RunState, folder: str) -> str:
    """Writes a checkpoint and removes all older ones except the last.

    Args:
        state: The shared state of the run.
        folder: The folder of the checkpoints.

    Returns:
        The folder of the new checkpoint.
    """
    step = int(state.step.value().numpy())
    path = posixpath.join(folder, f"ckpt-{step:012d}-{time.time_ns()}")
    tf.io.gfile.makedirs(path)
    by_device = _table_variables(state)
    for device, variables in by_device.items():
        with tf.device(device):
            tf.raw_ops.SaveV2(
                prefix=posixpath.join(path, _server_file(state, device)),
                tensor_names=list(variables),
                shape_and_slices=[""] * len(variables),
                tensors=[v.value() for v in variables.values()],
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
        "twml_ops_checkpoint": 1,
        "step": step,
        "tables": [_describe(t) for t in state.tables],
        "dense": {n: list(v.shape) for n, v in dense.items()},
        "servers": len(state.devices),
    }
    part = posixpath.join(path, MANIFEST + ".part")
    with tf.io.gfile.GFile(part, "w") as f:
        f.write(json.dumps(manifest, indent=1))
    tf.io.gfile.rename(part, posixpath.join(path, MANIFEST))
    _remove_old(folder)
    return path


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
    manifest = _manifest(path)
    saved = [_identity(t) for t in manifest["tables"]]
    expected = [_identity(_describe(t)) for t in state.tables]
    if saved != expected:
        raise ValueError(f"{path} is of another model: expected the tables {expected}, got {saved}")
    for i, (table, description) in enumerate(zip(state.tables, manifest["tables"], strict=True)):
        for p, shard in enumerate(table.shards):
            names = [f"{i}", *(f"{i}/{s}" for s in description["slots"])]
            for name, variable in zip(names, [shard, *table.slots[p]], strict=True):
                _restore(variable, name, table, p, description, path, manifest["servers"])
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
    manifest = _manifest(path)
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
        shards = [_read_shard(path, s, servers, f"{i}", table.dtype) for s in range(servers)]
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
    path: str,
    servers: int,
) -> None:
    with tf.device(variable.device):
        if servers == len(table.shards) and description["by_row"] == table.by_row:
            value = _read_shard(path, p, servers, name, variable.dtype)
        else:
            shards = [_read_shard(path, s, servers, name, variable.dtype) for s in range(servers)]
            # The shape of a remote tensor would wait for the server while it holds Python's lock.
            shape = table.shape[: variable.shape.rank]
            whole = _merge_shards(shards, description["by_row"], shape)
            has_columns = table.by_row or shape.rank > 1
            value = tf.identity(table.slice_shard(whole, p)) if has_columns else whole
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _read_shard(path: str, server: int, servers: int, name: str, dtype: tf.DType) -> tf.Tensor:
    """Reads the tensor `name` of one of the servers that wrote the checkpoint."""
    (value,) = _values(path, f"server-{server}-of-{servers}", [name], [dtype])
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


def _manifest(path: str) -> Any:
    with tf.io.gfile.GFile(posixpath.join(path, MANIFEST)) as f:
        return json.load(f)


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


def _list_all(folder: str) -> list[str]:
    if not tf.io.gfile.exists(folder):
        return []
    names = (n.rstrip("/") for n in tf.io.gfile.listdir(folder))
    return [posixpath.join(folder, n) for n in sorted(names) if n.startswith("ckpt-")]


def _complete(checkpoints: Sequence[str]) -> list[str]:
    return [c for c in checkpoints if tf.io.gfile.exists(posixpath.join(c, MANIFEST))]


def _remove_old(folder: str) -> None:
    """Removes all complete checkpoints except the last ones, and incomplete ones before those."""
    checkpoints = _list_all(folder)
    first_kept = _complete(checkpoints)[-MAX_TO_KEEP:][0]
    for c in checkpoints[: checkpoints.index(first_kept)]:
        tf.io.gfile.rmtree(c)
