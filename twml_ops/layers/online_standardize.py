"""Online normalization by the mean and the standard deviation of each feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import serializable
from twml_ops.layers._feature_norm import FeatureNorm


@serializable
class OnlineStandardize(FeatureNorm):
    """`y = clip((v - mean) / max(sd, epsilon), -clip, clip) + b`: a running z-score per feature.

    In training the batch first goes into the feature's count, mean and sum of squares (float64,
    Welford and Chan), and is standardized with them; no pass over the data is needed. Inference
    leaves them alone, and so does a layer with `trainable = False`. They count as constants for the
    gradient; that of b is sparse. A NaN is a missing value: not counted, and y = b.

    Takes any batch form and returns it; a binary batch (ids alone, all 1) becomes a pair.

    Args:
        input_dim: N, size of the id space; ids outside [0, N) are an error.
        epsilon: least standard deviation; positive and not denormal.
        clip: largest |y| before the bias.
        decay: for drifting data, in (0, 1]: what was seen before weighs so much less after each
            training batch that has the feature. 1: all values weigh the same.
        use_bias: whether each feature has a trainable bias b, which tells its presence from its
            absence.
        bias_initializer: of the bias [N].
        nonfinite: what becomes of infinite values, which are never counted. "error": the batch is
            refused. "zero": y = b.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range, or an input of no batch form.
        tf.errors.InvalidArgumentError: when called, an id out of range, or an infinite value
            where that is an error.
    """

    state_name = "moments"
    state_width = (3,)
    state_dtype = tf.float64
    moments: Any

    def __init__(
        self,
        input_dim: int,
        epsilon: float = 1e-6,
        clip: float = 10.0,
        decay: float = 1.0,
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        nonfinite: Literal["error", "zero"] = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(input_dim, epsilon, decay, use_bias, bias_initializer, nonfinite, **kwargs)
        if not clip > 0:
            raise ValueError(f"clip must be positive, got {clip!r}")
        self.clip = float(clip)

    def _op(self) -> Callable[..., tf.Tensor]:
        return ops.online_standardize

    def _op_arguments(self) -> dict[str, Any]:
        return {**super()._op_arguments(), "clip": self.clip}

    def merge(self, *others: OnlineStandardize) -> None:
        """Takes over what other layers of the same size have seen, of other data.

        Processes that saw parts of the data merge so; the biases stay this layer's.

        Raises:
            ValueError: a layer of another `input_dim`, or one that is not built.
        """
        self._check_mergeable(others)
        for other in others:
            a, b = (tf.convert_to_tensor(m) for m in (self.moments, other.moments))
            (count_a, mean_a, m2_a), (count_b, mean_b, m2_b) = (
                tf.unstack(m, axis=1) for m in (a, b)
            )
            count, delta = count_a + count_b, mean_b - mean_a
            share = tf.math.divide_no_nan(count_b, count)
            mean = mean_a + delta * share
            m2 = m2_a + m2_b + delta * delta * count_a * share
            self.moments.assign(tf.stack([count, mean, m2], axis=1))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "clip": self.clip}
