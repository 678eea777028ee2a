"""`tree_sums`: evaluation of ensembles of decision trees."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library


def tree_sums(
    x: Any,
    ensembles: Any,
    features: Any,
    thresholds: Any,
    missing_left: Any,
    children: Any,
    values: Any,
    roots: Any,
    *,
    max_depth: int,
) -> tf.Tensor:
    """Sums of the leaves that rows reach in decision trees.

    From node i, a row goes to `children[i, 0]` if its number in column `features[i]` is not larger
    than `thresholds[i]`, or, if the number is NaN, if `missing_left[i]`; otherwise it goes to
    `children[i, 1]`. Both children of a leaf are the leaf itself. There is no gradient.

    Args:
        x: float32 [B, C].
        ensembles: int64 [B], the ensemble of each row, in [0, K); or no items: the sum is the mean
            of the sums of all ensembles.
        features: int32 [M], in [0, C).
        thresholds: float32 [M].
        missing_left: uint8 [M], 0 or 1.
        children: int32 [M, 2], in [0, M).
        values: float32 [M].
        roots: int32 [K, T], in [0, M), the first node of each tree of each ensemble.
        max_depth: largest number of steps from a root, in [0, 1024].

    Returns:
        float32 [B], summed in the order of the trees. It does not depend on the number of threads.

    Raises:
        tf.errors.InvalidArgumentError: an argument is out of its range or of another shape.
    """
    return library.twml_tree_sums(
        x, ensembles, features, thresholds, missing_left, children, values, roots,
        max_depth=max_depth,
    )  # fmt: skip


tf.no_gradient("Twml>TreeSums")
