"""Online normalization by the mean and the standard deviation of each feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import serializable
from twml_ops.layers._feature_norm import FeatureNorm


@serializable
class OnlineStandardize(FeatureNorm):
    """`y = clip((v - mean) / max(sd, epsilon), -clip, clip) + b`: a running z-score.

    In training, the batch is first added to count, mean and sum of squared deviations of its
    features, in float64 by the formulas of Welford 1962 and Chan, Golub and LeVeque 1979 (see
    `ops.online_standardize`), and then standardized with them, without a separate pass over the
    data. Inference does not change them, and neither does a layer with `trainable = False`. They
    are constants for the gradient; the gradient by b is sparse. A NaN is a missing value: it is not
    counted, and y = b.

    The layer takes any batch form and returns the same form; a binary batch (ids alone, all values
    1) becomes a pair.

    Args:
        input_dim: N, size of the id space. Ids outside of [0, N) are an error.
        epsilon: Smallest standard deviation; positive and not denormal.
        clip: Largest |y| before the bias; positive.
        decay: In (0, 1], for drifting data. In training, count and sum of squared deviations of
            each feature in the batch are multiplied by it first. With 1 all values have the same
            weight.
        use_bias: Whether each feature has a trainable bias b, which distinguishes a present feature
            from an absent one.
        bias_initializer: Keras initializer of the bias [N].
        nonfinite: What happens to infinite values, which are never counted. "error": the op fails.
            "zero": y = b.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range, or the input has no batch form.
        tf.errors.InvalidArgumentError: When called, an id is out of range, or a value is infinite
            and `nonfinite` is "error".
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
        """Merges the moments of other layers, as if one layer had seen the data of all.

        Use it for processes that have read different parts of the data. The biases are not merged.

        Args:
            *others: Built layers with the same `input_dim`.

        Raises:
            ValueError: A layer has another `input_dim` or is not built.
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

    def joined_state(self, before: tf.Tensor, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """The moments after a batch whose parts other processes have seen.

        Args:
            before: The moments before the batch, float64 [N, 3].
            after: For each part, the moments after this part alone.

        Returns:
            The moments after the whole batch, by the formulas of `merge`: what the parts add is
            summed about the mean before the batch.
        """
        seen = [tf.reduce_any(tf.not_equal(a, before), axis=1) for a in after]
        origin = before[:, 1]
        decay = tf.cast(tf.constant(self.decay, tf.float32), before.dtype)  # as the op has it
        old_count, old_m2 = before[:, 0] * decay, before[:, 2] * decay
        count, first, second = old_count, tf.zeros_like(origin), old_m2
        for each, has_values in zip(after, seen, strict=True):
            n, mean, m2 = tf.unstack(each, axis=1)
            delta, zero = mean - origin, tf.zeros_like(n)
            count += tf.where(has_values, n - old_count, zero)
            first += tf.where(has_values, n * delta, zero)
            second += tf.where(has_values, m2 - old_m2 + n * delta * delta, zero)
        shift = tf.math.divide_no_nan(first, count)
        joined = tf.stack([count, origin + shift, tf.maximum(second - first * shift, 0.0)], axis=1)
        return tf.where(tf.reduce_any(seen, axis=0)[:, None], joined, before)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "clip": self.clip}
