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
    """Normalizes each value by the largest magnitude its feature has shown.

    `y[k] = clip(values[k] / max(m, epsilon), -1, 1) + bias[ids[k]]` with `m = max_abs[ids[k]]`.
    In training m is first raised, in place, to the largest `|values[k]|` the batch has of each
    id, so y does not depend on the order of entries. Costs O(K), not O(N).

    Gradients: m counts as a constant; by values `1 / max(m, epsilon)` where `|value| <= m` and 0
    where the value was clipped; by the bias a tf.IndexedSlices with unique ascending ids.

    Args:
        ids: int32 or int64 [K], each in [0, N), in any order, repeated or not.
        values: float32 [K].
        max_abs: variable float32 [N], not negative, start it with zeros. Not trainable.
        bias: None, or a trainable variable float32 [N]. It tells a present feature from an
            absent one.
        training: bool scalar, whether `max_abs` is raised.
        epsilon: least divisor; positive and not denormal.
        nonfinite: what becomes of NaN and infinite values, which never enter `max_abs`. "error":
            the batch is refused. "zero": they count as 0, with gradient 0.
        decay: in (0, 1]. In training `max_abs` of a feature is first multiplied by it, once a batch
            that has a finite value of the feature.

    Returns:
        float32 [K].

    Raises:
        tf.errors.InvalidArgumentError: an id out of range, a non-finite value where that is an
            error, or shapes that do not fit; `max_abs` is left as it was.
    """
    return normalize(
        library.twml_max_norm,
        ids,
        values,
        max_abs,
        bias,
        training,
        epsilon=epsilon,
        nonfinite=nonfinite,
        decay=decay,
    )
