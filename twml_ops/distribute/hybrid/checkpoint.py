"""Checkpoints of a run: each server writes and reads its own shards.

A checkpoint is a folder `ckpt-<step>-<time>`, which counts only once its manifest is there. The
manifest says how tables were divided, so any other number of servers, or the other axis, can read
them. The folder must be one that all servers and the chief can reach.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import updates
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.state import RunState
from twml_ops.distribute.hybrid.tables import RemoteTable, concat_shards
from twml_ops.ops._tape import tf_variable

MANIFEST = "manifest.json"
MAX_TO_KEEP = 2


def latest(folder: str) -> str | None:
    """The newest whole checkpoint in `folder`."""
    found = [c for c in _all(folder) if tf.io.gfile.exists(posixpath.join(c, MANIFEST))]
    return found[-1] if found else None


def save(state: RunState, folder: str) -> str:
    """Writes all of `state`; removes older checkpoints but the last.

    Returns:
        The checkpoint's folder.
    """
    step = int(state.step.value().numpy())
    path = posixpath.join(folder, f"ckpt-{step:012d}-{time.time_ns()}")
    tf.io.gfile.makedirs(path)
    held = _by_device(state)
    for device, variables in held.items():
        with tf.device(device):
            tf.raw_ops.SaveV2(
                prefix=posixpath.join(path, _file(state, device)),
                tensor_names=list(variables),
                shape_and_slices=[""] * len(variables),
                tensors=[v.value() for v in variables.values()],
            )
    for variables in held.values():  # after all were told, so that servers write at once
        next(iter(variables.values())).wait()
    dense = {n: tf.identity(v.numpy()) for n, v in _dense(state).items()}
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
        "tables": [_facts(t) for t in state.tables],
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
    """Sets all of `state` to what the checkpoint `path` holds.

    Returns:
        The step it was made at.

    Raises:
        ValueError: it is of another model or optimizer.
    """
    manifest = _manifest(path)
    old, new = ([_what(t) for t in ts] for ts in (manifest["tables"], map(_facts, state.tables)))
    if old != new:
        raise ValueError(f"{path} is of another model: expected the tables {new}, got {old}")
    for i, (table, facts) in enumerate(zip(state.tables, manifest["tables"], strict=True)):
        for p, shard in enumerate(table.shards):
            names = [f"{i}", *(f"{i}/{s}" for s in facts["slots"])]
            for name, variable in zip(names, [shard, *table.slots[p]], strict=True):
                _restore(variable, name, table, p, facts, path, manifest["servers"])
    dense = _dense(state)
    wanted = {n: list(v.shape) for n, v in dense.items()}
    if wanted != manifest["dense"]:
        raise ValueError(
            f"{path} is of another model: expected the weights {wanted}, got {manifest['dense']}"
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
    """What is needed to ask the model of the checkpoint `path`, in this process.

    Args:
        path: of it.
        tables: in the order in which a model of its layers makes them.
        model: of its layers, without tables: gets the dense weights.

    Returns:
        The step it was made at, and name -> table, whole.

    Raises:
        ValueError: it is of another model.
    """
    manifest = _manifest(path)
    facts, servers = manifest["tables"], manifest["servers"]
    weights = [v for v in model.weights if tf.as_dtype(v.dtype).is_floating]
    old = [(f["shape"], f["dtype"]) for f in facts], _without_slots(manifest["dense"])
    new = (
        [(list(t.shape), t.dtype.name) for t in tables],
        {f"{i}": list(v.shape) for i, v in enumerate(weights)},
    )
    if old != new:
        raise ValueError(f"{path} is of another model: expected {new}, got {old}")
    whole = {}
    for i, (table, f) in enumerate(zip(tables, facts, strict=True)):
        parts = [_part(path, s, servers, f"{i}", table.dtype) for s in range(servers)]
        whole[table.name] = _whole(parts, f["by_row"], table.shape)
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
    facts: dict[str, Any],
    path: str,
    servers: int,
) -> None:
    with tf.device(variable.device):
        if servers == len(table.shards) and facts["by_row"] == table.by_row:
            value = _part(path, p, servers, name, variable.dtype)
        else:
            parts = [_part(path, s, servers, name, variable.dtype) for s in range(servers)]
            # Asking a tensor there for its shape would wait with Python's lock held.
            shape = table.shape[: variable.shape.rank]
            whole = _whole(parts, facts["by_row"], shape)
            by_shard = table.by_row or shape.rank > 1
            value = tf.identity(table.cut(whole, p)) if by_shard else whole
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _part(path: str, server: int, servers: int, name: str, dtype: tf.DType) -> tf.Tensor:
    """What one of the servers that wrote the checkpoint had under `name`."""
    (value,) = _values(path, f"server-{server}-of-{servers}", [name], [dtype])
    return value


def _values(
    path: str, file: str, names: Sequence[str], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """What one of the files of the checkpoint `path` has under `names`."""
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


def _whole(shards: Sequence[tf.Tensor], by_row: bool, shape: tf.TensorShape) -> tf.Tensor:
    if len(shards) == 1:
        return shards[0]
    if not by_row and shape.rank == 1:  # means over each shard's columns
        return tf.add_n(list(shards)) / len(shards)
    return concat_shards(shards, by_row, shape[0])


def _by_device(state: RunState) -> dict[str, dict[str, RemoteVariable]]:
    """What each server holds of the tables: name -> variable."""
    result: dict[str, dict[str, RemoteVariable]] = {}
    for i, table in enumerate(state.tables):
        optimizer = updates.optimizer_of(state.optimizer, table)
        for shard, slots in zip(table.shards, table.slots, strict=True):
            mine = result.setdefault(shard.device, {})
            mine[f"{i}"] = shard
            names = optimizer.update_rule.slot_names
            mine.update({f"{i}/{s}": v for s, v in zip(names, slots, strict=True)})
    return result


def _dense(state: RunState) -> dict[str, Any]:
    """The dense weights and their slots, shared or this process' own: name -> variable."""
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


def _facts(table: RemoteTable) -> dict[str, Any]:
    slots = [s.name.rpartition("/")[2] for s in table.slots[0]]
    shape, dtype = list(table.shape), table.dtype.name
    return {
        "name": table.name, "shape": shape, "dtype": dtype, "slots": slots, "by_row": table.by_row
    }  # fmt: skip


def _what(facts: dict[str, Any]) -> dict[str, Any]:
    """Of a table, without how it is divided, nor the name, which Keras counts up."""
    return {k: v for k, v in facts.items() if k not in ("by_row", "name")}


def _file(state: RunState, device: str) -> str:
    return f"server-{state.devices.index(device)}-of-{len(state.devices)}"


def _all(folder: str) -> list[str]:
    if not tf.io.gfile.exists(folder):
        return []
    names = (n.rstrip("/") for n in tf.io.gfile.listdir(folder))
    return [posixpath.join(folder, n) for n in sorted(names) if n.startswith("ckpt-")]


def _remove_old(folder: str) -> None:
    """All but the last whole ones, and what was never finished before them."""
    checkpoints = _all(folder)
    whole = [c for c in checkpoints if tf.io.gfile.exists(posixpath.join(c, MANIFEST))]
    for c in checkpoints[: checkpoints.index(whole[-MAX_TO_KEEP:][0])]:
        tf.io.gfile.rmtree(c)
