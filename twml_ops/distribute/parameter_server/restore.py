"""How checkpoints of a run are read: by the run that goes on, or as ordinary models.

`restore_newest` restores the shared state on the servers, each of which reads its own shards. A
checkpoint of changed rows is replayed on the checkpoints before it, shard by shard.
`iter_checkpoints` reads the checkpoints of a running cluster, one after the other. `checkpoint`
writes them.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import placement
from twml_ops.checkpoint import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    check_facts,
)
from twml_ops.checkpoint.manifest import MANIFEST, SHARDS
from twml_ops.distribute.parameter_server.checkpoint import (
    DENSE,
    MEAN,
    dense_variables,
    describe,
    manager_of,
    name_of_ids,
    name_of_lookup,
    name_of_mean,
    name_of_new_rows,
    server_file,
)
from twml_ops.distribute.parameter_server.division import Division, divide_as_described
from twml_ops.distribute.parameter_server.dynamic_rows import RemoteLookup
from twml_ops.distribute.parameter_server.placement import ParameterServerPlacement
from twml_ops.distribute.parameter_server.rows_in_files import PartInFile
from twml_ops.distribute.parameter_server.state import RunState
from twml_ops.distribute.parameter_server.tables import (
    RemoteTable,
    RemoteVariable,
    copy_model_weights,
)
from twml_ops.distribute.parameter_server.weight_averages import WeightAverages
from twml_ops.ops._tape import tf_variable

_POLL_SECONDS = 0.2


def restore_newest(
    state: RunState,
    folder: str,
    facts: Mapping[str, Any] | None,
    may_differ: Sequence[str] = (),
    averages: WeightAverages | None = None,
) -> CheckpointReader | None:
    """Restores the shared state of a run from the newest checkpoint that is not damaged.

    Args:
        state: The shared state of the run.
        folder: The folder of the checkpoints.
        facts: Facts about the run, with which the checkpoint must agree; None: any.
        may_differ: Names of facts in which they may differ.
        averages: The averages of the weights, which are restored as well; None: they are not.

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
        restore(state, checkpoint, averages)

    return manager.newest_intact(read)


def restore(
    state: RunState, checkpoint: CheckpointReader, averages: WeightAverages | None = None
) -> None:
    """Restores the shared state of a run from a checkpoint.

    Args:
        state: The shared state of the run.
        checkpoint: The checkpoint.
        averages: The averages of the weights; None: they are not restored.

    Raises:
        CheckpointDamaged: A file is missing or damaged. Some of the state may be restored.
        ValueError: The checkpoint is of another model or optimizer.
    """
    chain = _Chain(checkpoint)
    path, shards = checkpoint.folder, chain.shards
    own = [describe(t) for t in state.tables]
    saved, expected = ([_identity(t) for t in each] for each in (shards["tables"], own))
    if [t["table"] for t in saved] != [t["table"] for t in expected]:
        names, own_names = ([t["name"] for t in each] for each in (shards["tables"], own))
        raise ValueError(
            f"{path} is of another model, or of a run that had other tables on the servers, which "
            f"partition_axis, plan and replicated_rows decide: expected {own_names}, got {names}"
        )
    if saved != expected:
        raise ValueError(f"{path} is of another model: expected the tables {expected}, got {saved}")
    _check_lookups(path, shards, state.lookups)
    dense = dense_variables(state)
    shapes = {n: list(v.shape) for n, v in dense.items()}
    if shapes != shards["dense"]:
        raise ValueError(
            f"{path} is of another model: expected the weights {shapes}, got {shards['dense']}"
        )
    sizes: list[tf.Tensor] = []
    with chain.reading():
        for i, (table, description) in enumerate(zip(state.tables, shards["tables"], strict=True)):
            saved_division = divide_as_described(description, chain.servers)
            for part, shard in enumerate(table.shards):
                names = [f"{i}", *(f"{i}/{s}" for s in description["slots"])]
                for name, variable in zip(names, [shard, *table.slots[part]], strict=True):
                    sizes += _restore(variable, name, table, part, saved_division, chain)
        for lookup in state.lookups:
            for name, variable in lookup.variables.items():
                with tf.device(variable.device):
                    value = chain.read_lookup(lookup.number, name, variable.dtype)
                    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
                    sizes.append(tf.raw_ops.Size(input=value))
        if dense:
            values = chain.values(DENSE, list(dense), [v.dtype for v in dense.values()])
            local = {id(s.remote): s.local for s in state.remote_weights}
            for variable, value in zip(dense.values(), values, strict=True):
                variable.assign(value)
                if id(variable) in local:  # lookups take initial rows of it
                    tf_variable(local[id(variable)]).assign(value)
        snapshots = int(shards.get("snapshots", 0)) if averages is not None else 0
        if averages is not None and snapshots:
            sizes += _restore_averages(averages, state, shards["tables"], chain)
        for size in sizes:  # raises the error of a server, which would be lost otherwise
            size.numpy()
        for shard in (shard for table in state.tables for shard in table.shards):
            shard.wait()
        for lookup in state.lookups:
            for variable in lookup.variables.values():
                variable.wait()
            lookup.push_initial_rows()
        for i, rows in chain.new_rows().items():
            state.tables[i].lookup.begin_saved_rows(rows)
    step = checkpoint.manifest.step
    state.step.assign(tf.constant(step, tf.int64))
    state.snapshots.assign(tf.constant(snapshots, tf.int64))
    state.set_iterations(step)


def _restore_averages(
    averages: WeightAverages, state: RunState, tables: Sequence[Mapping[str, Any]], chain: _Chain
) -> list[tf.Tensor]:
    """Restores averages that were begun; returns the sizes of what the servers have read."""
    sizes: list[tf.Tensor] = []
    for i, (table, means) in enumerate(zip(state.tables, averages.tables, strict=True)):
        saved = divide_as_described(tables[i], chain.servers)
        for part, mean in enumerate(means):
            sizes += _restore(mean, name_of_mean(i), table, part, saved, chain)
    names = [name_of_mean(i) for i in averages.dense]
    values = chain.values(DENSE, names, [tf.float32] * len(names)) if names else []
    for mean, value in zip(averages.dense.values(), values, strict=True):
        mean.assign(value)
    return sizes


def _check_lookups(path: Any, shards: Mapping[str, Any], lookups: Sequence[RemoteLookup]) -> None:
    saved, expected = shards.get("lookups", []), [each.describe() for each in lookups]
    if saved != expected:
        raise ValueError(
            f"{path} is of another model: expected the lookups {expected}, got {saved}"
        )


def read_model(
    checkpoint: CheckpointReader,
    tables: Sequence[RemoteTable],
    lookups: Sequence[RemoteLookup],
    model: tf.keras.Model,
) -> dict[str, tf.Tensor]:
    """Reads tables, lookups and dense weights of a checkpoint into this process.

    Args:
        checkpoint: The checkpoint.
        tables: Tables without values, in the order in which a model of the same layers creates
            them.
        lookups: Lookups without values, which get the ones of the checkpoint.
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
    _check_lookups(checkpoint.folder, chain.shards, lookups)
    whole, values = {}, []
    with chain.reading():
        for i, (table, description) in enumerate(zip(tables, descriptions, strict=True)):
            division = divide_as_described(description, chain.servers)
            parts = [chain.read_shard(s, f"{i}", table.dtype) for s in division.servers]
            whole[table.name] = division.merge(parts, table.shape)
        if weights:
            names = [f"{i}" for i in range(len(weights))]
            values = chain.values(DENSE, names, [tf.as_dtype(v.dtype) for v in weights])
        for lookup in lookups:
            lookup.load_saved(
                {
                    name: chain.read_lookup(lookup.number, name, tf.as_dtype(dtype)).numpy()
                    for name, dtype in lookup.dtypes().items()
                }
            )
        new_rows = chain.new_rows()
    for v, value in zip(weights, values, strict=True):
        tf_variable(v).assign(value)
    for i, rows in new_rows.items():
        table = tables[i]
        initial = tf.cast(table.lookup.initial_rows_of(tf.constant(rows)), table.dtype)
        whole[table.name] = tf.tensor_scatter_nd_update(whole[table.name], rows[:, None], initial)
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
        """Reads a tensor of one of the servers that wrote the checkpoint, with its changes."""
        file = server_file(server, self.servers)
        if name.endswith(MEAN):  # which is whole
            (mean,) = self.values(file, [name], [dtype])
            return mean
        value: Any = None
        for each in self._chain:
            if name not in each.manifest.values[SHARDS]["by_rows"]:
                (value,) = _values(each, file, [name], [dtype])
                continue
            ids, rows = _values(each, file, [name_of_ids(name), name], [tf.int64, dtype])
            # The raw op, because the wrapper of TensorFlow asks for shapes of remote tensors.
            indices = tf.raw_ops.ExpandDims(input=ids, axis=tf.constant(1))
            value = tf.raw_ops.TensorScatterUpdate(tensor=value, indices=indices, updates=rows)
        return value

    def read_pieces(
        self, server: int, name: str, part: PartInFile
    ) -> Iterator[tuple[int, tf.Tensor]]:
        """Reads a tensor of one of the servers that wrote the checkpoint, some rows at a time.

        Args:
            server: The number of the server.
            name: The name of the tensor.
            part: A part of the shape of the tensor.

        Yields:
            The first row and the values of neighboring rows, in order.
        """
        file, dtype = server_file(server, self.servers), part.dtype
        whole, changes = self._chain[0], []
        for each in self._chain:
            if name in each.manifest.values[SHARDS]["by_rows"]:
                names = [name_of_ids(name), name]
                changes.append(_values(each, file, names, [tf.int64, dtype]))
            else:
                whole, changes = each, []
        for begin, end in part.pieces():
            (value,) = _values(whole, file, [name], [dtype], [part.slice_name(begin, end)])
            for ids, rows in changes:  # by raw ops, as in `read_shard`
                inside = tf.raw_ops.LogicalAnd(
                    x=tf.raw_ops.GreaterEqual(x=ids, y=tf.constant(begin, tf.int64)),
                    y=tf.raw_ops.Less(x=ids, y=tf.constant(end, tf.int64)),
                )
                at = tf.raw_ops.Where(condition=inside)
                indices = tf.raw_ops.ExpandDims(
                    input=tf.raw_ops.Sub(
                        x=tf.raw_ops.GatherNd(params=ids, indices=at),
                        y=tf.constant(begin, tf.int64),
                    ),
                    axis=tf.constant(1),
                )
                updates = tf.raw_ops.GatherNd(params=rows, indices=at)
                value = tf.raw_ops.TensorScatterUpdate(
                    tensor=value, indices=indices, updates=updates
                )
            yield begin, value

    def read_lookup(self, number: int, name: str, dtype: tf.DType) -> tf.Tensor:
        """Reads a variable of a lookup from the file of the server that had it."""
        file = server_file(number % self.servers, self.servers)
        (value,) = self.values(file, [name_of_lookup(number, name)], [dtype])
        return value

    def new_rows(self) -> dict[int, Any]:
        """Reads which rows of tables begin anew, since a part of theirs has them for other ids.

        Returns:
            By the number of the table, int64 [E] in ascending order.
        """
        found = {}
        for i in self.shards.get("new_rows", []):
            servers = divide_as_described(self.shards["tables"][i], self.servers).servers
            by_part = [
                self.values(server_file(s, self.servers), [name_of_new_rows(f"{i}")], [tf.int64])
                for s in servers
            ]
            found[i] = np.unique(np.concatenate([rows.numpy() for (rows,) in by_part]))
        return found

    def values(
        self, file: str, names: Sequence[str], dtypes: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Reads tensors of the newest checkpoint."""
        return _values(self._newest, file, names, dtypes)


def _restore(
    variable: RemoteVariable,
    name: str,
    table: RemoteTable,
    part: int,
    saved: Division,
    chain: _Chain,
) -> list[tf.Tensor]:
    """Restores a part or a slot of it, and returns the sizes of what its server has read."""
    now = table.division
    is_same = (saved.row_parts, saved.column_parts) == (now.row_parts, now.column_parts)
    with tf.device(variable.device):
        if is_same and isinstance(variable, PartInFile):
            for begin, rows in chain.read_pieces(saved.servers[part], name, variable):
                variable.write(begin, rows)
            return []
        if is_same:
            value = chain.read_shard(saved.servers[part], name, variable.dtype)
        else:
            parts = [chain.read_shard(s, name, variable.dtype) for s in saved.servers]
            # The shape of a remote tensor would wait for the server while it holds Python's lock.
            shape = table.shape[: variable.shape.rank]
            value = tf.identity(now.slice(saved.merge(parts, shape), part, shape.rank))
        if isinstance(variable, PartInFile):
            variable.assign(value)
        else:
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        return [tf.raw_ops.Size(input=value)]


def _values(
    checkpoint: CheckpointReader,
    file: str,
    names: Sequence[str],
    dtypes: Sequence[tf.DType],
    slices: Sequence[str] = (),
) -> list[tf.Tensor]:
    """Reads the tensors `names`, or slices of them, from a file of a checkpoint."""
    values: list[tf.Tensor] = tf.raw_ops.RestoreV2(
        prefix=str(checkpoint.folder / file),
        tensor_names=names,
        shape_and_slices=slices or [""] * len(names),
        dtypes=dtypes,
    )
    return values


def _identity(description: dict[str, Any]) -> dict[str, Any]:
    """Returns what must be equal in a checkpoint and a run.

    The division may differ, and so may the name, in which Keras numbers layers; but not the number
    of the table: of two tables of one shape, each may be replicated and the other one on servers.
    """
    number = int(description["name"].partition("/")[0])
    return {"table": number, **{k: description[k] for k in ("shape", "dtype", "slots")}}


class _Shell:
    """A model without some of its tables.

    Args:
        model_builder: () -> the model.
        without: The numbers of these tables, in the order in which layers create tables.

    Attributes:
        placement: The placement, which has these tables without values.
        model: The model.
    """

    def __init__(
        self, model_builder: Callable[[], tf.keras.Model], without: frozenset[int]
    ) -> None:
        self.placement = ParameterServerPlacement(
            "", [], tf.float32, False, lambda number, path, rows: number not in without
        )
        with placement.placement_scope(self.placement):
            self.model = model_builder()


def _tables_on_servers(checkpoint: CheckpointReader) -> frozenset[int]:
    """The numbers of the tables that were on servers; the others are dense weights."""
    shards = checkpoint.manifest.values.get(SHARDS, {"tables": []})
    return frozenset(int(d["name"].partition("/")[0]) for d in shards["tables"])


def iter_checkpoints(
    model_builder: Callable[[], tf.keras.Model],
    checkpoint_dir: str | os.PathLike[str],
    until: int | None = None,
    accept: Callable[[CheckpointReader], bool] | None = None,
) -> Iterator[tuple[int, tf.keras.Model]]:
    """Iterates over the checkpoints of a run, each time the newest, and waits for the next one.

    This is the loop of an evaluator task. The evaluator is not connected to the cluster: it opens
    no port, and the other processes notice neither its speed nor its end. Tables are whole in this
    process. While a table is read, the process needs about three times the memory of that table.

    Args:
        model_builder: The `model_builder` of the run's `HybridTrainer`. Its models must have all
            their weights before they are called, as functional models do.
        checkpoint_dir: The `checkpoint_dir` of the run.
        until: The last step of the run; None: the iteration does not end at a step.
        accept: Whether a checkpoint is of the run, and not one that another run has left in the
            folder; None: all are.

    Yields:
        (step, model), the same model object each time. The iteration ends after a checkpoint of
        step `until` or later, or when the folder has been removed after it had existed.

    A checkpoint that is damaged is skipped with a warning.

    Raises:
        ValueError: A checkpoint is of another model.
    """
    manager = CheckpointManager(str(checkpoint_dir))
    shell: _Shell | None = None
    model: Any = None
    last_read, folder_existed = "", False
    while True:
        try:
            found = [c for c in manager.all() if accept is None or accept(c)]
        except CheckpointError as e:
            warnings.warn(f"{e}; it is tried again", RuntimeWarning, 2)
            time.sleep(_POLL_SECONDS)
            continue
        if not found or found[-1].folder.name == last_read:
            exists = manager.folder.is_dir()
            if folder_existed and not exists:
                return
            folder_existed = exists
            time.sleep(_POLL_SECONDS)
            continue
        newest = found[-1]
        last_read, folder_existed = newest.folder.name, True
        if shell is None:
            shell = _Shell(model_builder, _tables_on_servers(newest))
            model = model_builder()  # the last one, which a builder may keep
        try:
            tables = read_model(
                newest, shell.placement.tables, shell.placement.lookups, shell.model
            )
        except CheckpointDamaged as e:
            if (newest.folder / MANIFEST).exists():
                warnings.warn(f"{e}; the next checkpoint is waited for", RuntimeWarning, 2)
            continue  # or the chief has removed the checkpoint, since there is a newer one
        copy_model_weights(shell.model, model, tables)
        yield newest.manifest.step, model
        if until is not None and newest.manifest.step >= until:
            return
