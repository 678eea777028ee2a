"""Conversion of Keras models to steps and arrays for `twml_ops.core.Scorer`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops import layers
from twml_ops._keras import LayerCall, layer_calls, symbolic_inputs
from twml_ops._scorer import ACTIVATIONS, FORMAT, PROGRAM_FILE
from twml_ops.export.model_inputs import row_splits_name
from twml_ops.export.tables import TableFormat, store_table
from twml_ops.models import HashedIds
from twml_ops.ops._tape import tf_variable


def to_scorer(
    model: tf.keras.Model, path: str | os.PathLike[str], *, tables: TableFormat = "float32"
) -> None:
    """Writes a model for `twml_ops.core.Scorer`, which predicts without TensorFlow.

    Predictions agree with those of the model up to 1e-6 if `tables` is "float32". The scorer takes
    CSR batches, whatever batch form the model takes.

    Args:
        model: A functional or sequential model with one output, of the layers Cross,
            FactorizationMachine, GroupedSparseLinear, HashedIds, HashingDiscretizer, MaxNorm,
            PercentileDiscretizer and SparseLinear of this package, and Activation, Add,
            BatchNormalization, Concatenate, Dense, Dropout and Multiply of Keras.
        path: Folder to write.
        tables: How the rows of `SparseLinear` kernels are stored; see `to_stock_tf`.

    Raises:
        ValueError: The model has an unsupported layer or activation, has not exactly one output, or
            is subclassed.
    """
    outputs = getattr(model, "outputs", None)
    if symbolic_inputs(model) is None or not outputs or len(outputs) != 1:
        raise ValueError(
            f"model {model.name!r} must be functional or sequential with one output, "
            f"got {len(outputs or [])}"
        )
    program = _Program(tables)
    made, (output,) = layer_calls(outputs)
    for call in made:
        program.add(call)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in program.files.items():
        np.save(folder / file, array)
    text = {
        "format": FORMAT,
        "inputs": program.inputs,
        "steps": program.steps,
        "output": program.dense(output, model.name),
    }
    (folder / PROGRAM_FILE).write_text(json.dumps(text, indent=1) + "\n")


class _Input(NamedTuple):
    """An input of the model, whose role (ids, values, dense) depends on what reads it."""

    name: str
    sparse: bool


class _Batch(NamedTuple):
    """A sparse batch, as the registers of its parts."""

    ids: str
    values: str | None
    row_splits: str


class _Part(NamedTuple):
    """The ids or the values of a batch, which are two tensors in Keras."""

    register: str
    row_splits: str


class _Dense(NamedTuple):
    register: str


class _Program:
    """The program of a scorer, built layer by layer.

    Attributes:
        inputs: Name → role: "ids", "values", "row_splits" or "dense".
        steps: Steps in order.
        files: File name → array.
    """

    def __init__(self, tables: TableFormat) -> None:
        self.inputs: dict[str, str] = {}
        self.steps: list[dict[str, Any]] = []
        self.files: dict[str, Any] = {}
        self._tables = tables
        self._made: dict[Any, Any] = {}

    def add(self, call: LayerCall) -> None:
        """Appends the steps of one layer call."""
        layer = call.layer
        if isinstance(layer, tf.keras.layers.InputLayer):
            name = layer.name
            self._made[call.outputs[0]] = _Input(name, bool(getattr(layer, "sparse", False)))
            return
        for kind, compile_layer in _LAYERS.items():
            if isinstance(layer, kind):
                results = compile_layer(self, layer, call)
                self._made.update(zip(call.outputs, results, strict=True))
                return
        known = ", ".join(sorted(kind.__name__ for kind in _LAYERS))
        raise ValueError(
            f"layer {layer.name!r} is a {type(layer).__name__}; the scorer supports {known}"
        )

    def step(
        self,
        op: str,
        inputs: list[str | None],
        outputs: list[str | None],
        arrays: dict[str, Any] | None = None,
        **attributes: Any,
    ) -> None:
        """Appends one step. Arrays that are None are omitted."""
        names = {}
        for key, array in (arrays or {}).items():
            if array is not None:
                names[key] = f"{len(self.steps):03}_{op}_{key}.npy"
                self.files[names[key]] = np.asarray(array)
        step = {"op": op, "in": inputs, "out": outputs, "arrays": names, "attributes": attributes}
        self.steps.append(step)

    def new(self) -> str:
        """The name of a new register."""
        return f"#{len(self.steps)}"

    def dense(self, key: Any, where: str) -> str:
        """The register of a dense tensor."""
        made = self._made[key]
        if isinstance(made, _Input) and not made.sparse:
            return self._feed(made.name, "dense")
        if not isinstance(made, _Dense):
            raise ValueError(
                f"layer {where!r} must be called with dense tensors, got a sparse batch"
            )
        return made.register

    def batch(self, call: LayerCall, keys: Sequence[Any] | None = None) -> tuple[_Batch, bool]:
        """The batch that a layer is called with, and whether it is one SparseTensor.

        Args:
            call: The call.
            keys: Keys of the batch's parts; None: all inputs of the call.

        Returns:
            The registers of the batch, and whether it is a SparseTensor.
        """
        made = [self._made[key] for key in (call.inputs if keys is None else keys)]
        first = made[0]
        if isinstance(first, _Batch):
            return first, True
        if isinstance(first, _Input) and first.sparse:
            name = first.name
            ids, values = (self._feed(f"{name}_{p}", p) for p in ("ids", "values"))
            return _Batch(ids, values, self._feed(row_splits_name(name), "row_splits")), True
        parts = [
            self._part(m, role, call) for m, role in zip(made, ("ids", "values"), strict=False)
        ]
        row_splits = parts[0].row_splits
        if isinstance(first, _Input):
            self._feed(row_splits, "row_splits")
        return _Batch(
            parts[0].register, parts[1].register if parts[1:] else None, row_splits
        ), False

    def _part(self, made: Any, role: str, call: LayerCall) -> _Part:
        if isinstance(made, _Input):
            return _Part(self._feed(made.name, role), row_splits_name(made.name))
        if isinstance(made, _Part):
            return made
        raise ValueError(f"layer {call.layer.name!r} must be called with a sparse batch")

    def _feed(self, name: str, role: str) -> str:
        if self.inputs.setdefault(name, role) != role:
            raise ValueError(f"input {name!r} is used both as {self.inputs[name]} and as {role}")
        return name

    def activated(self, register: str, activation: Any, where: str) -> str:
        """The register of `register` after a Keras activation."""
        name = tf.keras.activations.serialize(activation)
        if name == "linear":
            return register
        if name not in ACTIVATIONS:
            raise ValueError(
                f"layer {where!r} has the activation {name!r}; the scorer supports "
                f"{', '.join(ACTIVATIONS)}"
            )
        out = self.new()
        self.step("activation", [register], [out], name=name)
        return out

    def table(self, table: Any) -> dict[str, Any]:
        """The arrays of a sparse-linear kernel in the requested format."""
        stored = store_table(table, self._tables)
        return {"table": stored.rows, "scale": stored.scale}


def _pair(batch: _Batch, sparse: bool, call: LayerCall) -> list[Any]:
    """A batch as the tensors that the layer returns."""
    if sparse:
        return [batch]
    parts = [_Part(batch.ids, batch.row_splits)]
    if len(call.outputs) == 2:
        assert batch.values is not None
        parts.append(_Part(batch.values, batch.row_splits))
    return parts


def _sparse_linear(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, _ = program.batch(call)
    bias = tf_variable(layer.bias).numpy() if layer.use_bias else None
    out = program.new()
    table = program.table(_merge_partitions(layer))
    program.step("sparse_linear", list(batch), [out], {**table, "bias": bias})
    return [_Dense(program.activated(out, layer.activation, layer.name))]


def _merge_partitions(layer: Any) -> Any:
    """The kernel [input_dim, units], merged from its partitions."""
    parts = [tf_variable(k).numpy().astype(np.float32) for k in layer.kernels]
    if layer.partition_axis == "column":
        return np.concatenate(parts, axis=1)
    whole = np.empty((layer.input_dim, layer.units), np.float32)
    for p, part in enumerate(parts):
        whole[p :: len(parts)] = part
    return whole


def _grouped_sparse_linear(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    features = sorted(layer.features)  # the order in which Keras flattens dicts
    parts, odd = divmod(len(call.inputs), len(features))
    if odd:
        raise ValueError(
            f"layer {layer.name!r} must be called with ids and values of all features, or with ids "
            "of all"
        )
    made = []
    for i, feature in enumerate(features):
        batch, _ = program.batch(call, call.inputs[i * parts : (i + 1) * parts])
        kernel = tf_variable(layer.kernels[layer.features[feature]]).numpy().astype(np.float32)
        out = program.new()
        program.step("sparse_linear", list(batch), [out], program.table(kernel))
        made.append(_Dense(out))
    return made


def _max_norm(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    out = program.new()
    arrays = {"max_abs": layer.max_abs, "bias": layer.bias if layer.use_bias else None}
    arrays = {k: None if v is None else tf_variable(v).numpy() for k, v in arrays.items()}
    options = {"epsilon": layer.epsilon, "nonfinite": layer.nonfinite}
    program.step("max_norm", list(batch), [out], arrays, **options)
    return _pair(batch._replace(values=out), sparse, call)


def _discretizer(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    register = program.new()
    values = None if batch.values is None else f"{register}v"
    made = _Batch(f"{register}i", values, f"{register}s")
    names = ("feature_ids", "boundaries", "boundary_splits")
    arrays = {n: v.numpy() for n, v in zip(names, layer.state_variables, strict=True)}
    hashing = isinstance(layer, layers.HashingDiscretizer)
    bits = "output_bits" if hashing else "pass_through_bits"
    options = {n: getattr(layer, n) for n in ("side", "missing", "unknown", bits, "keep_inputs")}
    op = "hashing_discretize" if hashing else "percentile_discretize"
    program.step(op, list(batch), list(made), arrays, **options)
    return _pair(made, sparse, call)


def _hashed_ids(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    out = program.new()
    program.step("hash_ids", [batch.ids], [out], bits=layer.bits)
    return _pair(batch._replace(ids=out), sparse, call)


def _dense(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    out = program.new()
    arrays = {
        "kernel": tf_variable(layer.kernel).numpy(),
        "bias": tf_variable(layer.bias).numpy() if layer.use_bias else None,
    }
    program.step("dense", [program.dense(call.inputs[0], layer.name)], [out], arrays)
    return [_Dense(program.activated(out, layer.activation, layer.name))]


def _cross(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    x0, x = (program.dense(key, layer.name) for key in (call.inputs[0], call.inputs[-1]))
    factors = [layer.kernel] if layer.rank is None else [layer.kernel_u, layer.kernel_v]
    product = x
    for factor in factors:
        arrays = {"kernel": tf_variable(factor).numpy()}
        if layer.use_bias and factor is factors[-1]:
            arrays["bias"] = tf_variable(layer.bias).numpy()
        before, product = product, program.new()
        program.step("dense", [before], [product], arrays)
    product = program.activated(product, layer.activation, layer.name)
    out = program.new()
    program.step("cross", [x0, x, product], [out], diag_scale=layer.diag_scale)
    return [_Dense(out)]


def _factorization_machine(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
    out = program.new()
    program.step("factorization_machine", registers, [out], pool=layer.pool)
    return [_Dense(out)]


def _activation(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    register = program.dense(call.inputs[0], layer.name)
    return [_Dense(program.activated(register, layer.activation, layer.name))]


def _identity(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    return [_Dense(program.dense(call.inputs[0], layer.name))]


def _merge(op: str) -> Callable[[_Program, Any, LayerCall], list[Any]]:
    def compile_layer(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
        registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
        out = program.new()
        options = {"axis": layer.axis} if op == "concatenate" else {}
        program.step(op, registers, [out], **options)
        return [_Dense(out)]

    return compile_layer


def _batch_normalization(program: _Program, layer: Any, call: LayerCall) -> list[Any]:
    if layer.axis not in (1, -1, [1], [-1]):
        raise ValueError(f"layer {layer.name!r} must normalize the last axis, got {layer.axis}")
    factor = 1 / np.sqrt(tf_variable(layer.moving_variance).numpy() + layer.epsilon)
    if layer.scale:
        factor = factor * tf_variable(layer.gamma).numpy()
    offset = -tf_variable(layer.moving_mean).numpy() * factor
    if layer.center:
        offset = offset + tf_variable(layer.beta).numpy()
    register, out = program.dense(call.inputs[0], layer.name), program.new()
    arrays = {"factor": factor.astype(np.float32), "offset": offset.astype(np.float32)}
    program.step("affine", [register], [out], arrays)
    return [_Dense(out)]


_LAYERS: dict[Any, Callable[[_Program, Any, LayerCall], list[Any]]] = {
    HashedIds: _hashed_ids,
    layers.Cross: _cross,
    layers.FactorizationMachine: _factorization_machine,
    layers.GroupedSparseLinear: _grouped_sparse_linear,
    layers.HashingDiscretizer: _discretizer,
    layers.MaxNorm: _max_norm,
    layers.PercentileDiscretizer: _discretizer,
    layers.SparseLinear: _sparse_linear,
    tf.keras.layers.Activation: _activation,
    tf.keras.layers.Add: _merge("add"),
    tf.keras.layers.BatchNormalization: _batch_normalization,
    tf.keras.layers.Concatenate: _merge("concatenate"),
    tf.keras.layers.Dense: _dense,
    tf.keras.layers.Dropout: _identity,
    tf.keras.layers.Multiply: _merge("multiply"),
}
