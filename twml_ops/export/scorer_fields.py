"""The steps of a scorer for the layers of models on fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import layers
from twml_ops._keras import LayerCall
from twml_ops.export.scorer_program import CompileLayer, Dense, Part, Program
from twml_ops.models import Bias, MeanLogit, SigmoidOfMeanLogit


def _dot_interaction(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    out = program.new()
    program.step("dot_interaction", [program.dense(call.inputs[0], layer.name)], [out])
    return [Dense(out)]


def _dot(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    axes = layer.axes if isinstance(layer.axes, (list, tuple)) else (layer.axes, layer.axes)
    if tuple(axes) != (1, 1) or layer.normalize:
        raise ValueError(
            f"layer {layer.name!r} must have the axes (1, 1) and not normalize, got {layer.axes}"
        )
    registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
    out = program.new()
    program.step("dot", registers, [out])
    return [Dense(out)]


def _reshape(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    shape = getattr(layer, "target_shape", (-1,))  # Flatten has none
    out = program.new()
    program.step("reshape", [program.dense(call.inputs[0], layer.name)], [out], shape=list(shape))
    return [Dense(out)]


def _bias(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    offset = program.value(layer.bias)
    register, out = program.dense(call.inputs[0], layer.name), program.new()
    program.step("affine", [register], [out], {"factor": np.ones_like(offset), "offset": offset})
    return [Dense(out)]


def _field_quantiles(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
    new = program.new()
    boundaries = program.value(layer.boundaries)
    outputs: list[str | None] = [f"{new}b", f"{new}r"]
    program.step("field_quantiles", registers, outputs, {"boundaries": boundaries})
    return [Dense(f"{new}b"), Dense(f"{new}r")]


def _field_logarithms(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
    arrays = {name: program.value(getattr(layer, name)) for name in ("scale", "offset")}
    out = program.new()
    program.step("field_logarithms", registers, [out], arrays, limit=layer.limit)
    return [Dense(out)]


def _rescaling(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    register = program.dense(call.inputs[0], layer.name)
    return [Dense(_scaled(program, register, layer.scale, layer.offset))]


def _category_rows(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    keys, rows = (program.value(v) for v in layer.state_variables[:2])
    return rows_of_ids(program, layer, call, "category_rows", {"keys": keys, "rows": rows})


def rows_of_ids(
    program: Program, layer: Any, call: LayerCall, op: str, arrays: dict[str, np.ndarray]
) -> list[Any]:
    """Appends the step of a layer that replaces the ids of a matrix and of bags by rows.

    Args:
        program: the program.
        layer: it has `num_fields` and `num_bags`.
        call: its call.
        op: the name of the step.
        arrays: the arrays of the step.

    Returns:
        What the layer returns.
    """
    single = layer.num_fields - layer.num_bags
    inputs: list[str | None] = []
    made: list[Any] = []
    new = program.new()
    for i, key in enumerate(call.inputs):
        out = f"{new}_{i}"
        if i == 0 and single:
            inputs.append(program.dense(key, layer.name))
            made.append(Dense(out))
        else:
            batch, _ = program.batch(call, [key])
            inputs.append(batch.ids)
            made.append(Part(out, batch.row_splits))
    outputs: list[str | None] = [f"{new}_{i}" for i in range(len(made))]
    program.step(op, inputs, outputs, arrays, single=single)
    return made


def _field_embedding(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    keys = list(call.inputs)
    matrix = program.dense(keys.pop(0), layer.name) if layer.num_fields else None
    bags: list[list[str | None]] = []
    while keys:
        pair = len(keys) > 1 and program.are_values(keys[1])
        batch, _ = program.batch(call, keys[: 1 + pair])
        bags.append(list(batch))
        del keys[: 1 + pair]
    if isinstance(layer.units, int) and layer.projected_units is None:
        (table,) = layer.tables
        return [Dense(_vectors(program, layer, table, matrix, bags, layer.pooling))]
    of_fields: dict[int, str] = {}
    for table in layer.tables:
        of_fields |= _vectors_of_fields(program, layer, table, matrix, bags)
    in_order = [of_fields[field] for field in sorted(of_fields)]
    if layer.projected_units is None:
        return [Dense(vector) for vector in in_order]
    return [Dense(_pooled(program, in_order, layer.projected_units, layer.pooling))]


def _vectors(
    program: Program,
    layer: Any,
    table: Any,
    matrix: str | None,
    bags: list[list[str | None]],
    pooling: str | None,
) -> str:
    """The vectors [B, F, units] of the fields of a table of a `FieldEmbedding`."""
    columns = [field for field in table.fields if field < layer.num_fields]
    if not columns:
        matrix = None
    elif len(columns) < layer.num_fields:
        ids: list[str | None] = [_columns(program, str(matrix), c, 1) for c in columns]
        matrix = program.new()
        program.step("concatenate", ids, [matrix], axis=-1)
    registers = [matrix]
    for field in table.fields[len(columns) :]:
        registers += bags[field - layer.num_fields]
    rows, attributes = program.table([table.variable])
    options = {
        "num_rows": [layer.num_rows[field] for field in table.fields],
        "pooling": pooling,
        "bag_combiner": layer.bag_combiner,
    }
    out = program.new()
    op = "field_embedding" if layer.out_of_range == "wrap" else "checked_field_embedding"
    program.step(op, registers, [out], {"table": rows}, **options, **attributes)
    return out


def _vectors_of_fields(
    program: Program, layer: Any, table: Any, matrix: str | None, bags: list[list[str | None]]
) -> dict[int, str]:
    """The vectors [B, units] of each field of a table, projected if the layer does that."""
    stacked = _vectors(program, layer, table, matrix, bags, None)
    flat = program.new()
    program.step("reshape", [stacked], [flat], shape=[-1])
    vectors = {}
    projections = None if table.projection is None else program.value(table.projection)
    for i, field in enumerate(table.fields):
        vectors[field] = _columns(program, flat, i * table.units, table.units)
        if projections is not None:
            out = program.new()
            program.step("dense", [vectors[field]], [out], {"kernel": projections[i]})
            vectors[field] = out
    return vectors


def _pooled(program: Program, vectors: Sequence[str], units: int, pooling: str | None) -> str:
    """Vectors [B, units] as [B, F, units], or their sum, mean or sum / sqrt(F)."""
    registers: list[str | None] = list(vectors)
    joined, out = program.new(), f"{program.new()}p"
    if pooling is None:
        program.step("concatenate", registers, [joined], axis=-1)
        program.step("reshape", [joined], [out], shape=[len(vectors), units])
        return out
    program.step("add", registers, [joined])
    power = {"sum": 0.0, "mean": 1.0, "sqrtn": 0.5}[pooling]
    factor = np.asarray([float(len(vectors)) ** -power], np.float32)
    program.step("affine", [joined], [out], {"factor": factor, "offset": np.zeros(1, np.float32)})
    return out


def _columns(program: Program, register: str, begin: int, size: int) -> str:
    out = program.new()
    program.step("slice", [register], [out], begin=begin, size=size)
    return out


def _cross(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    x0, x = (program.dense(key, layer.name) for key in (call.inputs[0], call.inputs[-1]))
    return [Dense(crossed(program, layer, x0, x))]


def crossed(program: Program, layer: layers.Cross, x0: str, x: str) -> str:
    """Appends the steps of a `Cross` layer.

    Args:
        program: the program.
        layer: the layer.
        x0: the register of its first input.
        x: that of its second input.

    Returns:
        The register of its output.
    """
    factors = [layer.kernel] if layer.rank is None else [layer.kernel_u, layer.kernel_v]
    product = x
    for factor in factors:
        arrays = {"kernel": program.value(factor)}
        if layer.use_bias and factor is factors[-1]:
            arrays["bias"] = program.value(layer.bias)
        before, product = product, program.new()
        program.step("dense", [before], [product], arrays)
    product = program.activated(product, layer.activation, layer.name)
    out = program.new()
    program.step("cross", [x0, x, product], [out], diag_scale=layer.diag_scale)
    return out


def _category_statistics(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    """In inference a statistic is a function of the category, so each has one number."""
    keys = program.value(layer.state_variables[0])
    totals = layer.state_variables[-1].read_value()
    used = tf.ones([1, layer.num_folds])
    rows = np.append(np.arange(len(keys)), -1)[:, np.newaxis]  # -1: an unknown category
    statistics = layer._statistics(tf.constant(rows, tf.int64), used, totals)
    out = program.new()
    program.step(
        "category_statistics",
        [program.dense(call.inputs[0], layer.name)],
        [out],
        {"keys": keys, "statistics": statistics.numpy().reshape(-1)},
        crosses=[list(c) for c in layer.crosses],
    )
    return [Dense(out)]


def _boosted_trees(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
    variables = zip(layer.state_names, layer.state_variables, strict=True)
    arrays = {name: program.value(variable) for name, variable in variables}
    out = program.new()
    options = {"num_optional": layer.num_optional, "max_depth": layer.depth}
    program.step("boosted_trees", registers, [out], arrays, **options)
    return [Dense(out)]


def _mean_logit(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    registers: list[str | None] = [program.dense(key, layer.name) for key in call.inputs]
    if layer.share != 0.5:
        weights = (1 - layer.share, layer.share)
        registers = [_scaled(program, r, w) for r, w in zip(registers, weights, strict=True)]
    out = program.new()
    program.step("mean" if layer.share == 0.5 else "add", registers, [out])
    return [Dense(out)]


def _scaled(program: Program, register: str | None, factor: float, offset: float = 0.0) -> str:
    """Appends a step that multiplies a register by a factor and adds an offset."""
    out = program.new()
    arrays = {
        "factor": np.asarray([factor], np.float32),
        "offset": np.asarray([offset], np.float32),
    }
    program.step("affine", [register], [out], arrays)
    return out


def _sigmoid_of_mean_logit(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    logits: list[str | None] = []
    for key in call.inputs:
        out = program.new()
        program.step("logit", [program.dense(key, layer.name)], [out])
        logits.append(out)
    mean = program.new()
    program.step("average", logits, [mean])
    out = program.new()
    program.step("activation", [mean], [out], name="sigmoid")
    return [Dense(out)]


FIELD_LAYERS: dict[Any, CompileLayer] = {
    Bias: _bias,
    MeanLogit: _mean_logit,
    SigmoidOfMeanLogit: _sigmoid_of_mean_logit,
    layers.BoostedTrees: _boosted_trees,
    layers.CategoryRows: _category_rows,
    layers.CountStatistics: _category_statistics,
    layers.Cross: _cross,
    layers.DotInteraction: _dot_interaction,
    layers.FieldEmbedding: _field_embedding,
    layers.FieldLogarithms: _field_logarithms,
    layers.FieldQuantiles: _field_quantiles,
    layers.TargetStatistics: _category_statistics,
    tf.keras.layers.Dot: _dot,
    tf.keras.layers.Flatten: _reshape,
    tf.keras.layers.Rescaling: _rescaling,
    tf.keras.layers.Reshape: _reshape,
}
