"""`max_norm`; its gradient is in `_feature_norm.py`."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from twml_ops.ops._feature_norm import normalize
from twml_ops.ops._library import library


def max_norm(
    ids: Any,
    values: Any,
    max_abs: Any,
    bias: Any = None,
    training: Any = False,
    *,
    epsilon: float = 1e-6,
    nonfinite: Literal["error", "zero"] = "error",
    decay: float = 1.0,
) -> tf.Tensor:
    """Normalizes each value by the largest magnitude that its feature has had.

    `y[k] = clip(values[k] / max(m, epsilon), -1, 1) + bias[ids[k]]` with `m = max_abs[ids[k]]`. In
    training, m is first raised in place to the largest `|values[k]|` of each id in the batch, so y
    does not depend on the order of the entries. The cost is O(K), not O(N).

    Gradients: m is a constant. By values: `1 / max(m, epsilon)` where `|value| <= m`, and 0 where
    the value was clipped. By the bias: `tf.IndexedSlices` with unique ascending ids.

    Args:
        ids: int32 or int64 [K], each in [0, N), in any order, with repetitions.
        values: float32 [K].
        max_abs: Variable float32 [N], not negative and not trainable. Initialize it with zeros. The
            op runs on its device, where `bias` must be as well.
        bias: None, or a trainable variable float32 [N], which distinguishes a present feature from
            an absent one.
        training: Bool scalar: whether `max_abs` is raised.
        epsilon: Smallest divisor; positive and not denormal.
        nonfinite: What happens to NaN and infinite values, which never change `max_abs`. "error":
            the op fails. "zero": they count as 0, with gradient 0.
        decay: In (0, 1]. In training, the maximum of each feature that has a finite value in the
            batch is multiplied by it before it is raised.

    Returns:
        float32 [K].

    Raises:
        tf.errors.InvalidArgumentError: An id is out of range, a value is not finite and `nonfinite`
            is "error", or shapes do not match. `max_abs` is unchanged then. If it is on a GPU, such
            entries are skipped, and a later op raises the error.
    """
    return normalize(
        library.twml_max_norm,
        ids,
        values,
        max_abs,
        bias,
        training,
        groups_in_training=decay < 1,
        on_gpu=True,
        epsilon=epsilon,
        nonfinite=nonfinite,
        decay=decay,
    )
