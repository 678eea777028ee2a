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
    """Standardizes each value by the running mean and standard deviation of its feature.

    `y[k] = clip((values[k] - mean) / max(sd, epsilon), -clip, clip) + bias[ids[k]]`. In training,
    the batch is first added to `moments` in place: Welford's sums within the batch, merged by the
    formula of Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances". A NaN is a missing value: it is not counted, and y is the bias
    alone. The same holds for a feature that has had no values. The cost is O(K), not O(N), and the
    result is the same for any number of threads.

    Gradients: the moments are constants. By values: `1 / max(sd, epsilon)`, and 0 where clipped or
    missing. By the bias: `tf.IndexedSlices` with unique ascending ids.

    Args:
        ids: int32 or int64 [K], each in [0, N), in any order, with repetitions.
        values: float32 [K].
        moments: Variable float64 [N, 3], not trainable: count, mean, and sum of squared deviations.
            Initialize it with zeros.
        bias: None, or a trainable variable float32 [N].
        training: Bool scalar: whether the batch is added to `moments`.
        epsilon: Smallest standard deviation; positive and not denormal.
        clip: Largest |y| before the bias; positive.
        decay: In (0, 1]. In training, count and sum of squares of each feature that has a finite
            value in the batch are multiplied by it first.
        nonfinite: What happens to infinite values, which never change `moments`. "error": the op
            fails. "zero": y is the bias alone, with gradient 0.

    Returns:
        float32 [K].

    Raises:
        tf.errors.InvalidArgumentError: An id is out of range, a value is infinite and `nonfinite`
            is "error", or shapes do not match. `moments` is unchanged then.
    """
    return normalize(
        library.twml_online_standardize,
        ids,
        values,
        moments,
        bias,
        training,
        groups_in_training=True,
        epsilon=epsilon,
        clip=clip,
        decay=decay,
        nonfinite=nonfinite,
    )
