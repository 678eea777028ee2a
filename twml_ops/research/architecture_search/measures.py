"""The cost of a part of a network: floating-point operations and measured times."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.layers import FieldEmbedding
from twml_ops.research.architecture_search.choice import Choice


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


BATCH_SIZE = 256
"""Examples of the batches that are timed."""
_CALLS = 20


def choice_latency(choice: Choice, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Times the candidates of a choice.

    Args:
        choice: The choice.
        shape: Of its input, without B.

    Returns:
        [K], milliseconds of `BATCH_SIZE` examples in inference; 0 for a part that is left out.
    """
    times = []
    for candidate in choice.candidates:
        inputs = tf.keras.Input(tuple(shape))
        output = choice.chosen(inputs, candidate, choice.name)
        if output is None or output is inputs:
            times.append(0.0)
            continue
        model = tf.keras.Model(inputs, output)
        times.append(_milliseconds(model, tf.random.normal((BATCH_SIZE, *shape))))
    return np.array(times)


def width_latency(
    widths: Sequence[int], num_rows: Sequence[int], units: int
) -> npt.NDArray[np.float64]:
    """Times lookups of all fields.

    Args:
        widths: Of the vectors, the same for all fields.
        num_rows: Rows of each field.
        units: To which vectors are projected.

    Returns:
        [len(widths)], milliseconds of `BATCH_SIZE` examples.
    """
    ids = np.random.default_rng(0).integers(0, num_rows, (BATCH_SIZE, len(num_rows)))
    layers = [
        FieldEmbedding(num_rows, width, projected_units=units, out_of_range="wrap")
        for width in widths
    ]
    return np.array([_milliseconds(layer, tf.constant(ids)) for layer in layers])


def _milliseconds(function: Callable[[Any], Any], inputs: Any) -> float:
    """The median time of some calls."""
    traced = tf.function(function, autograph=False)
    times = []
    for _ in range(1 + _CALLS):
        start = time.perf_counter()
        np.asarray(traced(inputs))
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[1:])
