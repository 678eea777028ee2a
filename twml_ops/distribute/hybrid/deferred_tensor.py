"""Tensors of a graph that ops may use before the value is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class DeferredTensor:
    """A tensor in the graph that is being built, whose value is another tensor of that graph.

    Args:
        shape: Its shape; a dimension that is None may have any size.
        dtype: Its type.

    Attributes:
        tensor: The tensor. It must not be used in another graph, and must have a value when the
            graph is complete.
    """

    def __init__(self, shape: Sequence[int | None], dtype: Any = tf.float32) -> None:
        # The placeholder is not used any more once there is a value, and TensorFlow removes it.
        self.tensor = tf.identity(tf.raw_ops.Placeholder(dtype=dtype, shape=shape))

    def determine(self, value: tf.Tensor) -> None:
        """Determines the value, which must not depend on this tensor."""
        self.tensor.op._update_input(0, value)


def depends_on(tensors: Sequence[tf.Tensor], sources: Sequence[tf.Tensor]) -> bool:
    """Whether tensors depend on other ones.

    Args:
        tensors: Tensors of the graph.
        sources: Tensors of the graph, such as deferred tensors or handles of variables.

    Returns:
        Whether an op that computes one of the tensors is the op of one of the sources.
    """
    wanted = {id(t.op) for t in sources}
    if not wanted:
        return False
    pending: list[Any] = [t.op for t in tensors]
    visited: set[Any] = set()
    while pending:
        op = pending.pop()
        if op in visited:
            continue
        if id(op) in wanted:
            return True
        visited.add(op)
        pending += [*(t.op for t in op.inputs), *op.control_inputs]
    return False
