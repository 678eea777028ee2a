"""The initial values of a table, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_PIECE_BYTES = 4 << 20
# Random ops, and how many values of their counter-based generator (Salmon et al. 2011, "Parallel
# random numbers: as easy as 1, 2, 3") four elements take.
_RANDOM = {
    "StatelessRandomUniformV2": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessTruncatedNormalV2": 256,
}
_ELEMENTS = 4
_ELEMENTWISE = {"AddV2", "Add", "Cast", "Identity", "Mul", "Neg", "RealDiv", "Sub"}


def constant_of(initializer: Any) -> float | None:
    """The value of all items, if they are equal.

    Args:
        initializer: of Keras.

    Returns:
        The value of `Zeros`, `Ones` and `Constant`; None for others.
    """
    kinds = tf.keras.initializers
    if isinstance(initializer, kinds.Zeros):
        return 0.0
    if isinstance(initializer, kinds.Ones):
        return 1.0
    value: Any = getattr(initializer, "value", None)
    if isinstance(initializer, kinds.Constant) and np.ndim(value) == 0:
        return float(value)
    return None


def initial_rows(
    initializer: Any, shape: Sequence[int], dtype: str
) -> Iterator[tuple[int, tf.Tensor]]:
    """The initial values of a table, equal bit for bit to the values of a table that is made at
    once.

    Random initializers of Keras are evaluated some rows at a time. Others, such as functions, are
    evaluated at once, which takes the memory of the whole table.

    Args:
        initializer: of Keras, or a function of shape and dtype.
        shape: [N, D].
        dtype: the type of the table.

    Yields:
        The first row and the values [count, D] of neighboring rows, in order.
    """
    num_rows, width = shape
    with tf.init_scope():
        per_piece = max(1, _PIECE_BYTES // (_ELEMENTS * max(width, 1) * 4)) * _ELEMENTS
        draw = _sliced(initializer, shape, dtype) if num_rows > per_piece else None
        whole = None if draw else tf.cast(initializer(tuple(shape), dtype=dtype), dtype)
        for begin in range(0, num_rows, per_piece):
            count = min(per_piece, num_rows - begin)
            if draw is None:
                assert whole is not None
                yield begin, whole[begin : begin + count]
            else:
                yield begin, draw(begin, count)


def _is_elementwise_after(random: tf.Operation, operations: Sequence[tf.Operation]) -> bool:
    """Whether what follows the random op treats its elements alike; seeds may be computed freely.

    Args:
        random: the random op.
        operations: the operations of its graph, each after its inputs.
    """
    later = {random}
    for op in operations:
        others = [x for x in op.inputs if x.op not in later]
        if len(others) == len(op.inputs) or op is random:
            continue
        if op.type not in _ELEMENTWISE or any(x.shape.rank != 0 for x in others):
            return False
        later.add(op)
    return True


def _sliced(initializer: Any, shape: Sequence[int], dtype: str) -> Any:
    """A function (begin, count) -> rows, if the initializer is elementwise after a random op."""

    @tf.function
    def whole() -> tf.Tensor:
        return tf.cast(initializer(tuple(shape), dtype=dtype), dtype)

    traced = whole.get_concrete_function()
    graph = traced.graph
    operations = graph.get_operations()
    found = [op for op in operations if op.type in _RANDOM]
    if traced.captured_inputs or len(found) != 1 or not _is_elementwise_after(found[0], operations):
        return None
    shape_name, counter_name = found[0].inputs[0].name, found[0].inputs[2].name
    step = _RANDOM[found[0].type]
    graph_def, output = graph.as_graph_def(), graph.structured_outputs.name

    @tf.function
    def start() -> tf.Tensor:
        return tf.graph_util.import_graph_def(graph_def, return_elements=[counter_name])[0]

    @tf.function(reduce_retracing=True)
    def rows(counter: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        dims = tf.stack([count, tf.constant(shape[1], count.dtype)])
        wanted = graph.get_tensor_by_name(shape_name).dtype
        mapped = {shape_name: tf.cast(dims, wanted), counter_name: counter}
        found = tf.graph_util.import_graph_def(graph_def, mapped, return_elements=[output])
        return found[0]

    first = [int(n) for n in start().numpy().view(np.uint64)]

    def draw(begin: int, count: int) -> tf.Tensor:
        # The counter has 128 bits, the lower half first.
        number = first[0] + (first[1] << 64) + begin * shape[1] // _ELEMENTS * step
        halves = [number & (2**64 - 1), (number >> 64) & (2**64 - 1)]
        counter = tf.constant(np.array(halves, np.uint64))
        with tf.device("CPU:0"):
            values: tf.Tensor = rows(counter, tf.constant(count, tf.int64))
        return values

    return draw
