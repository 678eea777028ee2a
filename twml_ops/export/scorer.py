"""Conversion of Keras models to steps and arrays for `twml_ops.core.Scorer`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import layers
from twml_ops._keras import LayerCall, input_specs, layer_calls, symbolic_inputs, symbolic_outputs
from twml_ops._research import scorer_layers
from twml_ops.data import Schema
from twml_ops.export.model_inputs import ModelInputs
from twml_ops.export.raw_columns import RawColumns
from twml_ops.export.scorer_fields import FIELD_LAYERS
from twml_ops.export.scorer_files import write_scorer
from twml_ops.export.scorer_program import Batch, CompileLayer, Dense, Part, Program
from twml_ops.export.scorer_strings import hash_strings
from twml_ops.export.tables import RowFormat
from twml_ops.export.values import Values
from twml_ops.models import HashedIds, SplitLabels, layout_of


def to_scorer(
    model: tf.keras.Model,
    path: str | os.PathLike[str],
    *,
    tables: RowFormat = "float32",
    schema: Schema | None = None,
    output_name: str | None = None,
    base: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a model for `twml_ops.core.Scorer`, which predicts without TensorFlow.

    Predictions agree with the model's predictions up to 1e-6 if `tables` is "float32". The scorer
    takes CSR batches, whatever batch form the model takes.

    Args:
        model: A functional or sequential model of the layers of this package (`twml_ops.layers`
            and `twml_ops.models`), of Activation, Add, Average, BatchNormalization, Concatenate,
            Dense, Dot, Dropout, Flatten, Multiply, Rescaling and Reshape of Keras, and of
            functional models of these, such as the members of an ensemble. With several outputs,
            for example a label each, the scorer returns them by name. A `DynamicLookup` becomes
            a map from the ids that have a row to their rows; all other ids have row 0.
        path: Folder to write.
        tables: How the rows of `SparseLinear` kernels and `FieldEmbedding` are stored: "float32";
            "bfloat16", which rounds to nearest; or "int8" or "int4", which store a row of D items
            as the nearest points of a grid with a scale and an offset of its own, in 8 + D or
            8 + ceil(D / 2) bytes. The grid has the least squared error that the greedy search of
            `core.quantize_rows` finds. Tables of one or two columns keep float32 then.
        schema: The features of the model, if it takes batches of `data.Source.dataset`. The scorer
            then also takes a dict of raw columns; see `Scorer.predict`.
        output_name: Name of the output in the answers of `twml-ops serve`. Default: that of the
            model. Several outputs keep the names that they have in the model.
        base: An earlier export in the same parent folder. Of arrays of at least 1 MiB, only the
            rows that differ from it are written, unless they are more than a quarter. The scorer
            maps the arrays of the base and replaces these rows in its own memory, so the base
            must stay as it is. If the base has a base itself, that one is used.

    Raises:
        FileNotFoundError: `base` is no scorer.
        ValueError: The model has an unsupported layer or activation, or is subclassed; or
            `output_name` is given for several outputs, or one of these has no known shape; or the
            model does not take the features of `schema`, or these are hashed by version 1; or
            two inputs need tensors of one name; or
            `base` is in another folder, or has no fingerprint.
    """
    text, files = scorer_program(model, tables, schema, output_name)
    write_scorer(Path(path), text, files, base)


def scorer_program(
    model: tf.keras.Model,
    tables: RowFormat = "float32",
    schema: Schema | None = None,
    output_name: str | None = None,
    values: Values | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The program of a scorer and its arrays.

    Args:
        model: see `to_scorer`.
        tables: see `to_scorer`.
        schema: see `to_scorer`.
        output_name: see `to_scorer`.
        values: where the values of variables come from. Default: the variables.

    Returns:
        The program, as its file has it, and the arrays by the names of their files.

    Raises:
        ValueError: see `to_scorer`.
    """
    outputs = getattr(model, "outputs", None)
    if symbolic_inputs(model) is None or not outputs:
        raise ValueError(f"model {model.name!r} must be functional or sequential")
    ModelInputs(model)  # refuses names that collide
    raw = None if schema is None else RawColumns(schema, layout_of(model))
    # A layer of research comes before the class that it extends.
    known = {**scorer_layers(), **_LAYERS}
    program = Program(tables, input_specs(model), known, values or Values())
    made, keys = layer_calls(outputs)
    for call in made:
        program.add(call)
    result = program.dense(keys[0], model.name)
    described = []
    if len(keys) > 1:
        described = _outputs(model, output_name)
        registers: list[str | None] = [program.dense(key, model.name) for key in keys]
        result = program.new()
        program.step("outputs", registers, [result])
    if raw is not None:
        _check_features(program.inputs, raw)
    text = {
        "inputs": program.inputs,
        "shapes": _shapes(program),
        "steps": program.steps,
        "output": result,
        "output_name": output_name or getattr(model, "output_names", ["output"])[0],
    }
    if described:
        text["outputs"] = described
    if raw is not None:
        text["raw"] = raw.to_json()
    return text, program.files


def _outputs(model: Any, output_name: str | None) -> list[dict[str, Any]]:
    """The names and the shapes of several outputs."""
    if output_name is not None:
        raise ValueError(
            f"output_name must be None for model {model.name!r} with {len(model.outputs)} outputs, "
            f"got {output_name!r}"
        )
    described = []
    for name, tensor in symbolic_outputs(model).items():
        dims = list(tensor.shape)[1:]
        if None in dims:
            raise ValueError(f"output {name!r} must have a known shape, got {tensor.shape}")
        described.append({"name": name, "shape": [int(dim) for dim in dims]})
    return described


def _shapes(program: Program) -> dict[str, list[int]]:
    """The shapes of the rows of dense inputs and of strings, if they are known."""
    shapes = {}
    for name, spec in program.specs_by_name.items():
        dims = list(spec.shape)[1:]
        if program.inputs.get(name) in ("dense", "strings") and None not in dims:
            shapes[name] = [int(dim) for dim in dims]
    return shapes


def _check_features(inputs: Iterable[str], raw: RawColumns) -> None:
    made = raw.feature_names()
    unknown = sorted(set(inputs) - set(made))
    if unknown:
        raise ValueError(
            f"the model has the inputs {unknown}, which are no features of the schema; those are "
            f"{made}"
        )


def _pair(batch: Batch, sparse: bool, call: LayerCall) -> list[Any]:
    """A batch as the tensors that the layer returns."""
    if sparse:
        return [batch]
    parts = [Part(batch.ids, batch.row_splits)]
    if len(call.outputs) == 2:
        assert batch.values is not None
        parts.append(Part(batch.values, batch.row_splits, are_values=True))
    return parts


def _sparse_linear(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, _ = program.batch(call)
    return [_product(program, layer, batch)]


def _product(program: Program, layer: Any, batch: Batch) -> Dense:
    """The step of a `SparseLinear` layer."""
    batch = _wrapped(program, batch, layer)
    bias = program.value(layer.bias) if layer.use_bias else None
    out = program.new()
    table, attributes = program.table(layer.kernels, layer.partition_axis)
    arrays = {"table": table, "bias": bias}
    program.step("sparse_linear", list(batch), [out], arrays, **attributes)
    return Dense(program.activated(out, layer.activation, layer.name))


def _wrapped(program: Program, batch: Batch, table: Any) -> Batch:
    """A batch of the ids that a table has, which wraps others or leaves them to its step."""
    if table.out_of_range == "error":
        return batch
    out = program.new()
    program.step("wrap_ids", [batch.ids], [out], num_rows=int(table.input_dim))
    return batch._replace(ids=out)


def _dynamic_lookup(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    return _pair(batch._replace(ids=_rows_of_ids(program, layer, batch.ids)), sparse, call)


def _rows_of_ids(program: Program, lookup: Any, ids: str) -> str:
    out = program.new()
    arrays = {"keys": program.value(lookup._keys), "index": program.value(lookup._index)}
    program.step("dynamic_lookup", [ids], [out], arrays, seed=lookup.seed)
    return out


def _dynamic_sparse_linear(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, _ = program.batch(call)
    batch = batch._replace(ids=_rows_of_ids(program, layer.lookup, batch.ids))
    return [_product(program, layer.linear, batch)]


def _grouped_sparse_linear(program: Program, layer: Any, call: LayerCall) -> list[Any]:
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
        batch = _wrapped(program, batch, layer.tables[layer.features[feature]])
        table, attributes = program.table([layer.kernels[layer.features[feature]]])
        out = program.new()
        program.step("sparse_linear", list(batch), [out], {"table": table}, **attributes)
        made.append(Dense(out))
    return made


def _max_norm(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    out = program.new()
    arrays = {"max_abs": layer.max_abs, "bias": layer.bias if layer.use_bias else None}
    arrays = {k: None if v is None else program.value(v) for k, v in arrays.items()}
    options = {"epsilon": layer.epsilon, "nonfinite": layer.nonfinite}
    program.step("max_norm", list(batch), [out], arrays, **options)
    return _pair(batch._replace(values=out), sparse, call)


def _standardize(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    out = program.new()
    bias = program.value(layer.bias) if layer.use_bias else None
    arrays = {"moments": program.value(layer.moments), "bias": bias}
    options = {name: getattr(layer, name) for name in ("epsilon", "clip", "nonfinite")}
    program.step("online_standardize", list(batch), [out], arrays, **options)
    return _pair(batch._replace(values=out), sparse, call)


def _calibration(op: str, *options: str) -> CompileLayer:
    def compile_layer(program: Program, layer: Any, call: LayerCall) -> list[Any]:
        if not layer.adapted:
            raise ValueError(f"layer {layer.name!r} is not adapted: call adapt(scores, labels)")
        register, out = program.dense(call.inputs[0], layer.name), program.new()
        variables = zip(layer.state_names, layer.state_variables, strict=True)
        arrays = {name: program.value(variable) for name, variable in variables}
        program.step(op, [register], [out], arrays, **{n: getattr(layer, n) for n in options})
        return [Dense(out)]

    return compile_layer


def _discretizer(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    register = program.new()
    values = None if batch.values is None else f"{register}v"
    made = Batch(f"{register}i", values, f"{register}s")
    names = ("feature_ids", "boundaries", "boundary_splits")
    arrays = {n: program.value(v) for n, v in zip(names, layer.state_variables, strict=True)}
    hashing = isinstance(layer, layers.HashingDiscretizer)
    bits = "output_bits" if hashing else "pass_through_bits"
    options = {n: getattr(layer, n) for n in ("side", "missing", "unknown", bits, "keep_inputs")}
    op = "hashing_discretize" if hashing else "percentile_discretize"
    program.step(op, list(batch), list(made), arrays, **options)
    return _pair(made, sparse, call)


def _hashed_ids(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    batch, sparse = program.batch(call)
    out = program.new()
    program.step("hash_ids", [batch.ids], [out], bits=layer.bits)
    return _pair(batch._replace(ids=out), sparse, call)


def _dense(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    out = program.new()
    arrays = {
        "kernel": program.value(layer.kernel),
        "bias": program.value(layer.bias) if layer.use_bias else None,
    }
    program.step("dense", [program.dense(call.inputs[0], layer.name)], [out], arrays)
    return [Dense(program.activated(out, layer.activation, layer.name))]


def _factorization_machine(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
    out = program.new()
    program.step("factorization_machine", registers, [out], pool=layer.pool)
    return [Dense(out)]


def _activation(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    register = program.dense(call.inputs[0], layer.name)
    return [Dense(program.activated(register, layer.activation, layer.name))]


def _identity(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    return [Dense(program.dense(call.inputs[0], layer.name))]


def _merge(op: str) -> CompileLayer:
    def compile_layer(program: Program, layer: Any, call: LayerCall) -> list[Any]:
        registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
        out = program.new()
        options = {"axis": layer.axis} if op == "concatenate" else {}
        program.step(op, registers, [out], **options)
        return [Dense(out)]

    return compile_layer


def _split_labels(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    register = program.dense(call.inputs[0], layer.name)
    columns: dict[str, Dense] = {}
    for i, label in enumerate(layer.labels):
        out = program.new()
        program.step("slice", [register], [out], begin=i, size=1)
        columns[label] = Dense(out)
    return [columns[label] for label in sorted(layer.labels)]  # as Keras flattens dicts


def _batch_normalization(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    if layer.axis not in (1, -1, [1], [-1]):
        raise ValueError(f"layer {layer.name!r} must normalize the last axis, got {layer.axis}")
    factor = 1 / np.sqrt(program.value(layer.moving_variance) + layer.epsilon)
    if layer.scale:
        factor = factor * program.value(layer.gamma)
    offset = -program.value(layer.moving_mean) * factor
    if layer.center:
        offset = offset + program.value(layer.beta)
    register, out = program.dense(call.inputs[0], layer.name), program.new()
    arrays = {"factor": factor.astype(np.float32), "offset": offset.astype(np.float32)}
    program.step("affine", [register], [out], arrays)
    return [Dense(out)]


def _nested_model(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    calls, outputs = layer_calls(layer.outputs)
    program.bind(layer_calls(layer.inputs)[1], call.inputs)
    for inner in calls:
        if not isinstance(inner.layer, tf.keras.layers.InputLayer):
            program.add(inner)
    return program.made(outputs)


_LAYERS: dict[Any, CompileLayer] = {
    **FIELD_LAYERS,
    HashedIds: _hashed_ids,
    SplitLabels: _split_labels,
    layers.DynamicLookup: _dynamic_lookup,
    layers.DynamicSparseLinear: _dynamic_sparse_linear,
    layers.FactorizationMachine: _factorization_machine,
    layers.GroupedSparseLinear: _grouped_sparse_linear,
    layers.HashingDiscretizer: _discretizer,
    layers.IsotonicCalibration: _calibration("isotonic_calibration", "nan"),
    layers.MaxNorm: _max_norm,
    layers.OnlineStandardize: _standardize,
    layers.PercentileDiscretizer: _discretizer,
    layers.PlattScaling: _calibration("platt_scaling", "from_logits", "nan"),
    layers.SparseLinear: _sparse_linear,
    layers.StringHash: hash_strings,
    tf.keras.Model: _nested_model,
    tf.keras.layers.Activation: _activation,
    tf.keras.layers.Add: _merge("add"),
    tf.keras.layers.Average: _merge("average"),
    tf.keras.layers.BatchNormalization: _batch_normalization,
    tf.keras.layers.Concatenate: _merge("concatenate"),
    tf.keras.layers.Dense: _dense,
    tf.keras.layers.Dropout: _identity,
    tf.keras.layers.Multiply: _merge("multiply"),
}
