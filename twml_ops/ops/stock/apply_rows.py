"""cc/core/update_rules.h in stock ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.bfloat16 import rounded
from twml_ops.ops.stock.sparse_linear import one_row_an_id, summed

_LEAST_FTRL_RATE = 2.0**-100  # kMinFtrlRate

Tensors = list[tf.Tensor]
# The touched rows after the update, and their slots, of (rows, slots, gradient, hyper).
_Step = Callable[[tf.Tensor, Tensors, tf.Tensor, Tensors], tuple[tf.Tensor, Tensors]]


def _sgd(w: tf.Tensor, slots: Tensors, g: tf.Tensor, hyper: Tensors) -> tuple[tf.Tensor, Tensors]:
    del slots
    return w - hyper[0] * g, []


def _momentum(
    w: tf.Tensor, slots: Tensors, g: tf.Tensor, hyper: Tensors
) -> tuple[tf.Tensor, Tensors]:
    lr, _, mu, nesterov = hyper
    m = mu * slots[0] - lr * g
    return w + tf.where(tf.not_equal(nesterov, 0), mu * m - lr * g, m), [m]


def _adagrad(
    w: tf.Tensor, slots: Tensors, g: tf.Tensor, hyper: Tensors
) -> tuple[tf.Tensor, Tensors]:
    lr, _, epsilon = hyper
    a = slots[0] + g * g
    return w - lr * g / tf.sqrt(a + epsilon), [a]


def mean_squares(g: tf.Tensor) -> tf.Tensor:
    """The mean square of each row of a matrix [R, D], shape [R]; 0 where D is 0."""
    width = tf.cast(tf.shape(g)[1], g.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(tf.square(g), axis=1), width)


def _rowwise_adagrad(
    w: tf.Tensor, slots: Tensors, g: tf.Tensor, hyper: Tensors
) -> tuple[tf.Tensor, Tensors]:
    lr, _, epsilon = hyper
    a = slots[0] + mean_squares(g)[:, tf.newaxis]
    return w - lr / tf.sqrt(a + epsilon) * g, [a]


def _lazy_adam(
    w: tf.Tensor, slots: Tensors, g: tf.Tensor, hyper: Tensors
) -> tuple[tf.Tensor, Tensors]:
    lr, _, beta_1, beta_2, epsilon = hyper
    m = slots[0] + (g - slots[0]) * (1 - beta_1)
    v = slots[1] + (g * g - slots[1]) * (1 - beta_2)
    return w - lr * m / (tf.sqrt(v) + epsilon), [m, v]


def _ftrl(w: tf.Tensor, slots: Tensors, g: tf.Tensor, hyper: Tensors) -> tuple[tf.Tensor, Tensors]:
    new, total, z = ftrl_step(w, slots, g, hyper)
    return new, [total, z]


def ftrl_step(
    w: tf.Tensor, slots: Sequence[tf.Tensor], g: tf.Tensor, hyper: Sequence[Any]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The weights, already decayed, and both slots after a step of the rule "ftrl"."""
    lr, _, power, l1, l2, shrinkage = hyper
    a, z = slots
    total = a + g * g
    before, after = tf.pow(a, -power), tf.pow(total, -power)
    new_z = z + g + 2 * shrinkage * w - (after - before) / lr * w
    scale = after / lr + 2 * l2
    new = tf.where(tf.equal(scale, 0), w, (tf.clip_by_value(new_z, -l1, l1) - new_z) / scale)
    steps = tf.abs(lr) >= _LEAST_FTRL_RATE
    return tf.where(steps, new, w), tf.where(steps, total, a), tf.where(steps, new_z, z)


class _Rule(NamedTuple):
    step: _Step
    num_slots: int
    num_hyper: int
    rowwise_slots: bool = False


_RULES = {
    "sgd": _Rule(_sgd, 0, 2),
    "momentum": _Rule(_momentum, 1, 4),
    "adagrad": _Rule(_adagrad, 1, 3),
    "rowwise_adagrad": _Rule(_rowwise_adagrad, 1, 3, rowwise_slots=True),
    "lazy_adam": _Rule(_lazy_adam, 2, 5),
    "ftrl": _Rule(_ftrl, 2, 6),
}


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
    """As the op Twml>ApplyRows: `var` and `slots` are handles of variables."""
    del hogwild  # of locks that stock ops do not take
    ids, rows = tf.convert_to_tensor(ids), tf.convert_to_tensor(rows, tf.float32)
    info = _rule_of(rule, slots, hyper)
    handles = [var, *slots]
    check.table(var, "var", None, tf.float32, tf.bfloat16)
    for handle in slots:
        check.table(handle, "slots")
    shapes = [tf.raw_ops.VariableShape(input=h, out_type=tf.int64) for h in handles]
    claims = _claims(handles, shapes, info, ids, rows)
    ids, gradient = summed(check.expect(ids, *claims), rows)
    return update(rule, handles, shapes, ids, gradient, hyper, seed)


def update(
    rule: str,
    handles: Sequence[tf.Tensor],
    shapes: Sequence[tf.Tensor],
    ids: tf.Tensor,
    gradient: tf.Tensor,
    hyper: Sequence[tf.Tensor],
    seed: Any,
    if_any: tf.Tensor | None = None,
) -> Any:
    """Updates the rows `ids` [U] of a table and its slots by `gradient` [U, ...].

    Args:
        rule: its name.
        handles: of the table and its slots.
        shapes: of both.
        ids: in range; an id that repeats must have the same gradient each time.
        gradient: its rows.
        hyper: of the rule.
        seed: of stochastic rounding.
        if_any: bool scalar: False leaves everything as it is.
    """
    info = _RULES[rule]
    var, *slots = handles
    dtype = check.table(var, "var", None, tf.float32, tf.bfloat16)
    number, width = tf.shape(ids)[0], tf.cast(tf.reduce_prod(shapes[0][1:]), tf.int32)

    def read(handle: tf.Tensor, columns: Any, dtype: tf.DType = tf.float32) -> tf.Tensor:
        found = tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=dtype)
        return tf.reshape(found, tf.stack([number, columns]))

    stored = read(var, width, dtype)
    w = tf.cast(stored, tf.float32)
    w -= w * hyper[1]
    old = [read(s, 1 if info.rowwise_slots else width) for s in slots]
    new, new_slots = info.step(w, old, tf.reshape(gradient, [number, width]), list(hyper))
    new = new if dtype == tf.float32 else rounded(new, ids, seed)
    values = [new, *new_slots]
    if if_any is not None:
        before = [stored, *old]
        values = [tf.where(if_any, v, b) for v, b in zip(values, before, strict=True)]
    written = []
    for handle, shape, value in zip(handles, shapes, values, strict=True):
        tail = tf.concat([[tf.cast(number, tf.int64)], shape[1:]], 0)
        written.append(
            tf.raw_ops.ResourceScatterUpdate(
                resource=handle, indices=ids, updates=tf.reshape(value, tail)
            )
        )
    return None if tf.executing_eagerly() else tf.group(*written)


def _rule_of(rule: str, slots: Sequence[Any], hyper: Sequence[tf.Tensor]) -> _Rule:
    if rule not in _RULES:
        raise check.refusal(f"rule '{rule}' is not known")
    info = _RULES[rule]
    if (len(slots), len(hyper)) != (info.num_slots, info.num_hyper):
        raise check.refusal(
            f"rule '{rule}' takes {info.num_slots} slots and {info.num_hyper} hyper, "
            f"got {len(slots)} and {len(hyper)}"
        )
    for scalar in hyper:
        check.rank(scalar, 0, "hyper")
    return info


def _claims(
    handles: Sequence[tf.Tensor],
    shapes: Sequence[tf.Tensor],
    info: _Rule,
    ids: tf.Tensor,
    rows: tf.Tensor,
) -> list[check.Claim]:
    check.rank(ids, 1, "ids")
    if rows.shape.rank == 0:
        raise check.refusal("rows must have rank 1 or more, got a scalar")
    if len({id(h) for h in handles}) < len(handles):
        raise check.refusal("var and slots must be different variables")
    var = tf.get_static_value(shapes[0])
    for s, shape in enumerate(shapes[1:]):
        known = tf.get_static_value(shape)
        if var is None or known is None:
            continue  # reshaping or writing then refuses what does not fit
        size = math.prod(known.tolist())
        fits = size == var[0] if info.rowwise_slots else known.tolist() == var.tolist()
        if not fits:
            got = "[" + ",".join(map(str, known.tolist())) + "]"
            want = "[" + ",".join(map(str, var.tolist())) + "]"
            raise check.refusal(f"slots[{s}] must fit var {want}, got {got}")
    return [
        check.ids_in_range(ids, shapes[0][0]),
        one_row_an_id(ids, rows),
        check.equal(
            "the gradient's rows must be as wide as the table's, {}, got {}",
            lambda: tf.reduce_prod(shapes[0][1:]),
            lambda: tf.reduce_prod(tf.shape(rows, out_type=tf.int64)[1:]),
        ),
    ]
