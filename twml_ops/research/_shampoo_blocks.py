"""Blocks of weights, what Shampoo keeps for each, and the replica that owns it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class Block(NamedTuple):
    """A part of a weight that has preconditioners of its own.

    Attributes:
        begin: the position of its first item in the weight.
        shape: its lengths.
    """

    begin: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def order(self) -> int:
        """The number of preconditioners, one for each axis."""
        return len(self.shape)


def preconditioned_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a weight without axes of length 1; (1,) if nothing is left.

    Args:
        shape: the shape of the weight.
    """
    return tuple(int(d) for d in shape if d != 1) or (1,)


def blocks_of(shape: Sequence[int], max_dim: int) -> list[Block]:
    """Divides a weight into blocks, row by row.

    Args:
        shape: the shape of the weight, without axes of length 1.
        max_dim: largest length of a block along each axis.

    Returns:
        The blocks; none if the weight has no items.
    """
    starts = [range(0, d, max_dim) for d in shape]
    return [
        Block(begin, tuple(min(max_dim, d - b) for d, b in zip(shape, begin, strict=True)))
        for begin in itertools.product(*starts)
    ]


def join_blocks(parts: Sequence[tf.Tensor], shape: Sequence[int], max_dim: int) -> tf.Tensor:
    """Puts the parts of `blocks_of(shape, max_dim)` together again.

    Args:
        parts: one tensor for each block.
        shape: see `blocks_of`.
        max_dim: see `blocks_of`.

    Returns:
        A tensor of the shape `shape`.
    """
    parts = list(parts)
    for axis in reversed(range(len(shape))):
        count = -(-shape[axis] // max_dim)
        parts = [tf.concat(parts[i : i + count], axis) for i in range(0, len(parts), count)]
    return parts[0]


def assign_owners(costs: Sequence[int], replicas: int) -> list[int]:
    """Divides blocks over replicas so that their sums of costs are about equal.

    The blocks go one by one, in the order of decreasing costs, to the replica with the smallest sum
    so far (Graham 1969). The largest sum is at most 4/3 of the smallest possible one.

    Args:
        costs: the costs of each block.
        replicas: their number, positive.

    Returns:
        The replica of each block.
    """
    sums, owners = [0] * replicas, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owners[i] = min(range(replicas), key=lambda r: (sums[r], r))
        sums[owners[i]] += costs[i]
    return owners


class BlockState:
    """The state of Shampoo for one block, all on one replica.

    Args:
        block: the block.
        owner: number of the replica.
        add: adds a variable: (name, shape, initializer) → variable.
        averages_gradient: whether the average of the gradients is kept.
        grafts_squares: whether the sum or average of the squared gradients is kept.

    Attributes:
        statistics: [d, d] of each axis.
        roots: [d, d] of each axis, the identity until they are first computed.
        gradient: the average of the gradients, in the shape of the block; or None.
        squares: of the squared gradients, in the shape of the block; or None.
    """

    def __init__(
        self,
        block: Block,
        owner: int,
        add: Callable[[str, Sequence[int], str], Any],
        *,
        averages_gradient: bool,
        grafts_squares: bool,
    ) -> None:
        self.block, self.owner = block, owner
        axes = list(enumerate(block.shape))
        self.statistics = [add(f"statistic_{i}", (d, d), "zeros") for i, d in axes]
        self.roots = [add(f"inverse_root_{i}", (d, d), "identity") for i, d in axes]
        self.gradient = add("gradient", block.shape, "zeros") if averages_gradient else None
        self.squares = add("squares", block.shape, "zeros") if grafts_squares else None


def state_size(block: Block, *, averages_gradient: bool, grafts_squares: bool) -> int:
    """The number of items that a `BlockState` has.

    Args:
        block: the block.
        averages_gradient: see `BlockState`.
        grafts_squares: see `BlockState`.
    """
    items = 1
    for d in block.shape:
        items *= d
    return 2 * sum(d * d for d in block.shape) + items * (averages_gradient + grafts_squares)


def products_along_axes(gradient: tf.Tensor) -> Iterator[tf.Tensor]:
    """For each axis, the products [d, d] of the gradient's slices with each other.

    Args:
        gradient: the gradient of a block.

    Yields:
        G_i G_i^T, with the gradient as a matrix G_i of one row for each position on axis i.
    """
    axes = range(len(gradient.shape))
    for axis in axes:
        others = [a for a in axes if a != axis]
        yield tf.tensordot(gradient, gradient, [others, others])


def multiply_axes(gradient: tf.Tensor, matrices: Sequence[tf.Tensor]) -> tf.Tensor:
    """Multiplies each axis of a tensor with a symmetric matrix.

    Args:
        gradient: any tensor.
        matrices: [d, d], one for each axis.

    Returns:
        A tensor of the same shape.
    """
    for matrix in matrices:
        gradient = tf.tensordot(gradient, matrix, [[0], [0]])  # its axis becomes the last one
    return gradient
