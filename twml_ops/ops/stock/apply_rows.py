"""The op Twml>ApplyRows in stock ops: an update rule applied to the touched rows of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.bfloat16 import round_stochastically
from twml_ops.ops.stock.sparse_linear import one_row_per_id, sum_duplicates_unchecked
from twml_ops.ops.stock.update_rules import UPDATE_FORMULAS, TensorCell, UpdateFormula


def apply_rows(
    var: tf.Tensor,
    slots: Sequence[tf.Tensor],
    ids: tf.Tensor,
    rows: tf.Tensor,
    hyper: Sequence[tf.Tensor],
    seed: Any = 0,
    rule: str = "",
    hogwild: bool = False,
) -> Any:
    """The op Twml>ApplyRows; `var` and `slots` are handles of variables."""
    del hogwild  # stock ops take no locks that could be shared
    ids, rows = tf.convert_to_tensor(ids), tf.convert_to_tensor(rows, tf.float32)
    formula = _checked_formula(rule, slots, hyper)
    handles = [var, *slots]
    check.variable_dtype(var, "var", None, tf.float32, tf.bfloat16)
    for handle in slots:
        check.variable_dtype(handle, "slots")
    shapes = [tf.raw_ops.VariableShape(input=h, out_type=tf.int64) for h in handles]
    preconditions = _preconditions(handles, shapes, formula, ids, rows)
    ids, gradient = sum_duplicates_unchecked(check.require_well_formed(ids, *preconditions), rows)
    return update_rows(rule, handles, shapes, ids, gradient, hyper, seed)


def apply_wide_rows(
    rule: str, var: tf.Variable, slots: Sequence[tf.Variable], gradient: Any, hyper: Sequence[Any]
) -> Any:
    """Updates the touched rows of a variable whose type no kernel has, such as float64.

    Args:
        rule: Name of the update rule.
        var: Variable [N, ...].
        slots: Variables of its type.
        gradient: `tf.IndexedSlices`, whose repeated ids are summed first.
        hyper: Hyperparameters of the rule.

    Returns:
        The operation that updates, or None in eager mode.
    """
    dtype = var.dtype.base_dtype
    handles = [v.handle for v in (var, *slots)]
    shapes = [tf.raw_ops.VariableShape(input=h, out_type=tf.int64) for h in handles]
    ids, rows = gradient.indices, tf.cast(gradient.values, dtype)
    preconditions = _preconditions(handles, shapes, UPDATE_FORMULAS[rule], ids, rows)
    ids = check.require_well_formed(ids, *preconditions)
    ids, rows = sum_duplicates_unchecked(ids, rows)
    hyper = [tf.cast(h, dtype) for h in hyper]
    return update_rows(rule, handles, shapes, ids, rows, hyper, 0, dtype=dtype)


def update_rows(
    rule: str,
    handles: Sequence[tf.Tensor],
    shapes: Sequence[tf.Tensor],
    ids: tf.Tensor,
    gradient: tf.Tensor,
    hyper: Sequence[tf.Tensor],
    seed: Any,
    enabled: tf.Tensor | None = None,
    dtype: tf.DType = tf.float32,
) -> Any:
    """Updates the rows `ids` [U] of a table and its slots with `gradient` [U, ...].

    Args:
        rule: Name of the update rule.
        handles: Resource handles of the table and its slots.
        shapes: Shapes of the same.
        ids: Row numbers in range. Repeated ids must have equal gradients.
        gradient: Gradient rows.
        hyper: Hyperparameters of the rule.
        seed: Seed of stochastic rounding.
        enabled: Bool scalar; False keeps all values. None: always update.
        dtype: Type of the computation and of the slots; the table may be bfloat16 if it is float32.

    Returns:
        The operation that updates, or None in eager mode.
    """
    formula = UPDATE_FORMULAS[rule]
    var, *slots = handles
    dtypes = (tf.float32, tf.bfloat16) if dtype == tf.float32 else (dtype,)
    of_var = check.variable_dtype(var, "var", None, *dtypes)
    number, width = tf.shape(ids)[0], tf.cast(tf.reduce_prod(shapes[0][1:]), tf.int32)

    def read(handle: tf.Tensor, shape: Sequence[Any], dtype: tf.DType = dtype) -> tf.Tensor:
        found = tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=dtype)
        return tf.reshape(found, tf.stack(shape))

    stored = read(var, [number, width], of_var)
    weights = tf.cast(stored, dtype)
    cell = TensorCell(weights - weights * hyper[1])
    old = [read(s, [number] if formula.rowwise_slots else [number, width]) for s in slots]
    cells = [TensorCell(value) for value in old]
    formula.step(cell, cells, tf.reshape(gradient, [number, width]), list(hyper))
    new = cell.value() if of_var == dtype else round_stochastically(cell.value(), ids, seed)
    values = [new, *(c.value() for c in cells)]
    if enabled is not None:
        before = [stored, *old]
        values = [tf.where(enabled, v, b) for v, b in zip(values, before, strict=True)]
    written = []
    for handle, shape, value in zip(handles, shapes, values, strict=True):
        tail = tf.concat([[tf.cast(number, tf.int64)], shape[1:]], 0)
        written.append(
            tf.raw_ops.ResourceScatterUpdate(
                resource=handle, indices=ids, updates=tf.reshape(value, tail)
            )
        )
    return None if tf.executing_eagerly() else tf.group(*written)


def _checked_formula(rule: str, slots: Sequence[Any], hyper: Sequence[tf.Tensor]) -> UpdateFormula:
    if rule not in UPDATE_FORMULAS:
        raise check.invalid_argument(f"rule '{rule}' is not known")
    formula = UPDATE_FORMULAS[rule]
    number = len(formula.slots), len(formula.hyperparameters)
    if (len(slots), len(hyper)) != number:
        raise check.invalid_argument(
            f"rule '{rule}' takes {number[0]} slots and {number[1]} hyper, "
            f"got {len(slots)} and {len(hyper)}"
        )
    for scalar in hyper:
        check.rank(scalar, 0, "hyper")
    return formula


def _preconditions(
    handles: Sequence[tf.Tensor],
    shapes: Sequence[tf.Tensor],
    formula: UpdateFormula,
    ids: tf.Tensor,
    rows: tf.Tensor,
) -> list[check.Precondition]:
    check.rank(ids, 1, "ids")
    if rows.shape.rank == 0:
        raise check.invalid_argument("rows must have rank 1 or more, got a scalar")
    if len({id(h) for h in handles}) < len(handles):
        raise check.invalid_argument("var and slots must be different variables")
    var = tf.get_static_value(shapes[0])
    for s, shape in enumerate(shapes[1:]):
        known = tf.get_static_value(shape)
        if var is None or known is None:
            continue  # reshape or scatter then fails if they do not match
        size = math.prod(known.tolist())
        fits = size == var[0] if formula.rowwise_slots else known.tolist() == var.tolist()
        if not fits:
            got = "[" + ",".join(map(str, known.tolist())) + "]"
            want = "[" + ",".join(map(str, var.tolist())) + "]"
            raise check.invalid_argument(f"slots[{s}] must fit var {want}, got {got}")
    return [
        check.ids_in_range(ids, shapes[0][0]),
        one_row_per_id(ids, rows),
        check.equal(
            "the gradient's rows must be as wide as the table's, {}, got {}",
            lambda: tf.reduce_prod(shapes[0][1:]),
            lambda: tf.reduce_prod(tf.shape(rows, out_type=tf.int64)[1:]),
        ),
    ]
