"""`online_standardize`; its gradient is in `_feature_norm.py`."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from twml_ops.ops._feature_norm import normalize
from twml_ops.ops._library import library


def online_standardize(
    ids: Any,
    values: Any,
    moments: Any,
    bias: Any = None,
    training: Any = False,
    *,
    epsilon: float = 1e-6,
    clip: float = 10.0,
    decay: float = 1.0,
    nonfinite: Literal["error", "zero"] = "error",
) -> tf.Tensor:
    """The running z-score of each value: its distance from its feature's mean in deviations.

    `y[k] = clip((values[k] - mean) / max(sd, epsilon), -clip, clip) + bias[ids[k]]`, the mean and
    the standard deviation being those that the feature has shown so far. In training the batch
    first goes into `moments`, in place: Welford's sums within the batch, merged by the formula of
    Chan, Golub and LeVeque (1979). A NaN is a missing value: it is not counted and y is the bias
    alone, as it is for a feature never seen. Costs O(K), not O(N); does not depend on the threads.

    Gradients: the moments count as constants; by values 1 / max(sd, epsilon), 0 where clipped or
    missing; by the bias a tf.IndexedSlices with unique ascending ids.

    Args:
        ids: int32 or int64 [K], each in [0, N), in any order, repeated or not.
        values: float32 [K].
        moments: variable float64 [N, 3], start it with zeros: count, mean, and sum of squared
            distances from the mean. Not trainable.
        bias: None, or a trainable variable float32 [N].
        training: bool scalar, whether `moments` take in the batch.
        epsilon: least standard deviation; positive and not denormal.
        clip: largest |y| before the bias; positive.
        decay: in (0, 1]. What was seen before weighs so much less after each training batch that
            has a finite value of the feature.
        nonfinite: of infinite values, which never enter `moments`. "error": the batch is refused.
            "zero": y is the bias alone, with gradient 0.

    Returns:
        float32 [K].

    Raises:
        tf.errors.InvalidArgumentError: an id out of range, an infinite value where that is an
            error, or shapes that do not fit; `moments` are left as they were.
    """
    return normalize(
        library.twml_online_standardize,
        ids,
        values,
        moments,
        bias,
        training,
        epsilon=epsilon,
        clip=clip,
        decay=decay,
        nonfinite=nonfinite,
    )
