"""Counts the floating-point operations of a part of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def count_flops(function: Callable[[Any], Any], *shapes: Sequence[int], inputs: Any = None) -> int:
    """Operations of the matrix products and convolutions of one example, 2 a multiplication.

    The function is traced with a batch of one example. Lookups, activations, normalizations and
    sums are not counted; they are a small part of the work, and no matrix products.

    Args:
        function: A layer or model.
        *shapes: Of the Float inputs, without B.
        inputs: Instead of `shapes`: what the function is called with, as `tf.TensorSpec`.

    Returns:
        Their number.
    """
    if inputs is None:
        specs = [tf.TensorSpec((1, *shape), tf.float32) for shape in shapes]
        inputs = specs[0] if len(specs) == 1 else specs
    graph = tf.function(function, autograph=False).get_concrete_function(inputs).graph
    return sum(_flops(op) for op in _operations(graph))


def _operations(graph: Any) -> Any:
    """The operations of a graph and of the functions that it calls."""
    for op in graph.get_operations():
        yield op
        if "PartitionedCall" in op.type:
            yield from _operations(graph._get_function(op.get_attr("f").name).graph)


def _flops(op: Any) -> int:
    if op.type == "Einsum":
        labels = op.get_attr("equation").decode().partition("->")[0].split(",")
        sizes: dict[str, int] = {}
        for names, tensor in zip(labels, op.inputs, strict=True):
            sizes.update(zip(names, tensor.shape, strict=True))
        return 2 * math.prod(sizes.values()) if len(labels) > 1 else 0
    if op.type == "MatMul":
        inner = op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1]
    elif op.type.startswith("BatchMatMul"):
        inner = op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1]
    elif op.type == "Conv2D":
        inner = math.prod(op.inputs[1].shape[:3])
    else:
        return 0
    return 2 * int(inner) * math.prod(op.outputs[0].shape)
