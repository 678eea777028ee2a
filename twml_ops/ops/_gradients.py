"""How gradients are registered: what they are given, whatever TensorFlow hands on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Gradient = Callable[..., list[Any]]


def register_gradient(*names: str) -> Callable[[Gradient], Gradient]:
    """Registers a function as the gradient of ops, in reverse mode.

    The function takes the op and, for each output, the gradient by it: a tensor, or None. Ops such
    as `tf.gather` have `tf.IndexedSlices` as their gradient; those are summed first.

    Args:
        *names: of the ops.
    """

    def register(function: Gradient) -> Gradient:
        @functools.wraps(function)
        def gradient(op: Any, *gradients: Any) -> list[Any]:
            _refuse_forward_mode(op.type)
            given = zip(gradients, op.outputs, strict=True)
            return function(op, *(_dense(g, output) for g, output in given))

        for name in names:
            tf.RegisterGradient(name)(gradient)
        return function

    return register


def needs_gradient(op: Any, index: int) -> bool:
    """Whether the tape has a use for the gradient by input `index`; in a graph always true."""
    skipped = getattr(op, "skip_input_indices", None)
    return skipped is None or index not in skipped


def _dense(gradient: Any, output: tf.Tensor) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    shape = gradient.dense_shape
    rows = (tf.shape(output) if shape is None else shape)[0]
    summed = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
    summed.set_shape(output.shape)
    return summed


def _refuse_forward_mode(op_type: str) -> None:
    """Refuses `tf.autodiff.ForwardAccumulator`, which traces a gradient to transpose it.

    It cannot transpose sparse gradients and those of variables that are read by their handle.
    """
    if tf.executing_eagerly():
        return
    if str(getattr(tf.compat.v1.get_default_graph(), "name", "")).startswith("_jvp"):
        raise NotImplementedError(
            f"{op_type} has no forward mode (tf.autodiff.ForwardAccumulator); expected reverse "
            "mode: use tf.GradientTape, one within another for second derivatives"
        )
