"""Registration of the ops' gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Gradient = Callable[..., list[Any]]


def register_gradient(*names: str) -> Callable[[Gradient], Gradient]:
    """Registers a function as the reverse-mode gradient of ops.

    The function takes the op and one gradient for each output: a dense tensor, or None. Where
    TensorFlow passes `tf.IndexedSlices`, as after `tf.gather`, they are converted first.

    Args:
        *names: Names of the ops.

    Returns:
        A decorator that returns the function unchanged.
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
    """Whether the gradient by input `index` of `op` is used.

    Only eager tapes know; in a graph the answer is always True, and TensorFlow prunes what is
    unused.
    """
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
    """Raises in `tf.autodiff.ForwardAccumulator`.

    Forward mode traces the gradient function and transposes it. That fails for sparse gradients and
    for gradients of variables that are read through their handle.
    """
    if tf.executing_eagerly():
        return
    if str(getattr(tf.compat.v1.get_default_graph(), "name", "")).startswith("_jvp"):
        raise NotImplementedError(
            f"{op_type} does not support forward mode (tf.autodiff.ForwardAccumulator): use "
            "tf.GradientTape, and nested tapes for second derivatives"
        )
