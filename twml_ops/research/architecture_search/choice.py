"""One decision of a network to be searched."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Choice(abc.ABC):
    """One decision: which of K candidates a network has.

    A class of your own needs `chosen` only; then the search trains all candidates beside each other
    and adds their outputs, which must have equal shapes, multiplied with weights that add up to 1
    (Liu et al. 2019, "DARTS: Differentiable Architecture Search"). Override `mixed` and `combine`
    to share weights among candidates, and the others so that costs are counted. Costs must be
    affine in the shape, so that their expectation is their value at the expected shape.

    Args:
        name: Its name, unique in the space.
        candidates: K values, at least one, the most expensive last.

    Attributes:
        name: The name.
        candidates: The values.

    Raises:
        ValueError: There are no candidates.
    """

    def __init__(self, name: str, candidates: Sequence[Any]) -> None:
        if not candidates:
            raise ValueError(f"candidates of {name!r} must be at least one, got none")
        self.name, self.candidates = name, tuple(candidates)

    @abc.abstractmethod
    def chosen(self, x: Any, candidate: Any, name: str) -> Any:
        """The part of a network that has one candidate.

        Args:
            x: Keras tensor, the input: [B, F, D] for an interaction, [B, n] for a dense layer.
            candidate: The value.
            name: For the layer, or the start of the names of several.

        Returns:
            Keras tensor, the output: [B, any, D] or [B, any].
        """

    def mixed(self, x: Any) -> list[Any]:
        """The outputs of all candidates for `combine`, as Keras tensors.

        Args:
            x: The input.

        Returns:
            The outputs of the K candidates.
        """
        return [self.chosen(x, c, f"{self.name}_{i}") for i, c in enumerate(self.candidates)]

    def combine(self, tensors: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """The weighted candidates. At weights with a single 1 it equals `chosen`.

        Args:
            tensors: The outputs of the K candidates, from `mixed`.
            weights: Float [K], not negative, with the sum 1.

        Returns:
            The output.
        """
        return tf.add_n([w * y for w, y in zip(tf.unstack(weights), tensors, strict=True)])

    def size(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """Components of the output of one example.

        Args:
            candidate: The value.
            shape: Of the input without B. Of dense layers [n], where n may be an expected width.

        Returns:
            Their number.
        """
        del candidate
        return math.prod(shape)

    def flops(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """Floating-point operations of one example, 2 for each multiplication of a matrix product.

        Args:
            candidate: The value.
            shape: As of `size`.

        Returns:
            Their number, by default 0.
        """
        del candidate, shape
        return 0.0

    def parameters(self, candidate: Any, shape: Sequence[Any]) -> Any:
        """Trainable parameters.

        Args:
            candidate: The value.
            shape: As of `size`.

        Returns:
            Their number, by default 0.
        """
        del candidate, shape
        return 0.0


def ascending(name: str, candidates: Sequence[int], lowest: int) -> tuple[int, ...]:
    """Checks candidates that are numbers of something.

    Args:
        name: Of the choice.
        candidates: The values.
        lowest: The smallest valid one.

    Returns:
        The values.

    Raises:
        ValueError: They are not ascending integers from `lowest` on.
    """
    values = tuple(int(c) for c in candidates)
    if values != tuple(candidates) or sorted({*values}) != [*values] or values[:1] < (lowest,):
        raise ValueError(
            f"candidates of {name!r} must be ascending integers of at least {lowest}, got "
            f"{tuple(candidates)}"
        )
    return values


def masks(widths: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[K, max(widths)]: the first `widths[k]` components of row k are 1, the others 0."""
    return (np.arange(max(widths)) < np.array(widths)[:, None]).astype(np.float32)
