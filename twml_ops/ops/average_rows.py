"""Exponential moving averages of the rows of a table, at a cost of O(touched rows)."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from twml_ops.ops import stock
from twml_ops.ops._library import library
from twml_ops.ops._tape import has_kernel_for, tf_variable
from twml_ops.ops.apply_rows import groups_of, sparse_linear_gradient_inputs
from twml_ops.ops.changed_rows import writes_unmarked


def average_rows(
    var: Any,
    average: Any,
    steps: Any,
    gradient: tf.IndexedSlices,
    step: Any,
    momentum: float,
    *,
    fuse: bool = True,
    hogwild: bool = False,
) -> Any:
    """Advances the moving averages of the rows of a sparse gradient, in place.

    The average after step t is `a(t) = momentum * a(t - 1) + (1 - momentum) * w(t)`, where w(t) is
    the row after the update of step t (Polyak and Juditsky 1992, "Acceleration of Stochastic
    Approximation by Averaging", with exponential weights). Between two updates a row is constant,
    so that its average of d steps follows in one: `momentum^d * a + (1 - momentum^d) * w`. The cost
    is that of the touched rows; an average is kept as of the step before the last update of its
    row. Call this before the update of step `step`, with the same gradient.

    Args:
        var: Variable float32 or bfloat16 [N, D], the table.
        average: Variable float32 [N, D]; row i is a(steps[i] - 1).
        steps: Variable int64 [N]; 0, the initial value, means that the average is the row itself.
        gradient: Ids [K], which may repeat, and rows.
        step: Integer scalar, the number of the step, from 0. Step 0 advances nothing: averages
            begin with the rows after its updates.
        momentum: In [0, 1].
        fuse: Whether the groups of the fused update may be used, as in `apply_rows`. The result is
            the same, bit for bit.
        hogwild: Whether concurrent steps may write without locks, as in `apply_rows`.

    Returns:
        The operation that writes, or None in eager mode.

    Raises:
        ValueError: The momentum is not in [0, 1].
        tf.errors.InvalidArgumentError: An id is out of range, or shapes do not match. Nothing is
            changed then.
    """
    log_momentum = log_of_momentum(momentum)
    in_library = has_kernel_for(var)
    product = sparse_linear_gradient_inputs(gradient) if fuse and in_library else None
    if not (in_library and library.marks_rows):
        writes_unmarked([var, average, steps])
    ops = library if in_library else stock.library
    waits = () if product is None else product.control_inputs
    with tf.control_dependencies(waits):
        return ops.twml_average_rows(
            *(tf_variable(v).handle for v in (var, average, steps)),
            gradient.indices if product is None else groups_of(product, tf_variable(var)),
            tf.cast(step, tf.int64),
            log_momentum,
            hogwild=hogwild,
        )


def log_of_momentum(momentum: float) -> float:
    """The natural logarithm of a momentum; -infinity for 0.

    Args:
        momentum: In [0, 1].

    Returns:
        The logarithm.

    Raises:
        ValueError: The momentum is not in [0, 1].
    """
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum must be in [0, 1], got {momentum!r}")
    return math.log(momentum) if momentum else -math.inf
