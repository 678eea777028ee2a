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
            joined = self.join_batches(
                tf.convert_to_tensor(self.moments), tf.convert_to_tensor(other.moments)
            )
            self.moments.assign(joined)

    def state_of_batch(self, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        """The moments of the values of a batch; see `FeatureNorm.state_of_batch`.

        Args:
            before: The moments before the batch, float64 [N, 3].
            after: The moments after it.

        Returns:
            float64 [N, 3]; zeros where the moments were left as they were. By the formulas of
            `merge`, with sums about the mean before the batch.
        """
        old_count, origin, old_m2 = tf.unstack(self._decayed(before), axis=1)
        count, mean, m2 = tf.unstack(after, axis=1)
        delta, own = mean - origin, count - old_count
        shift = tf.math.divide_no_nan(count * delta, own)
        own_m2 = tf.maximum(m2 - old_m2 + count * delta * (delta - shift), 0.0)
        moments = tf.stack([own, origin + shift, own_m2], axis=1)
        is_seen = tf.reduce_any(tf.not_equal(after, before), axis=1, keepdims=True)
        return tf.where(is_seen, moments, tf.zeros_like(moments))

    def join_batches(self, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """The moments of the values of two batches; see `FeatureNorm.join_batches`."""
        (count_a, mean_a, m2_a), (count_b, mean_b, m2_b) = (
            tf.unstack(m, axis=1) for m in (one, other)
        )
        count, delta = count_a + count_b, mean_b - mean_a
        share = tf.math.divide_no_nan(count_b, count)
        mean = mean_a + delta * share
        m2 = m2_a + m2_b + delta * delta * count_a * share
        return tf.stack([count, mean, m2], axis=1)

    def state_with(self, state: tf.Tensor, of_batch: tf.Tensor) -> tf.Tensor:
        """See `FeatureNorm.state_with`."""
        is_seen = of_batch[:, :1] > 0
        return tf.where(is_seen, self.join_batches(self._decayed(state), of_batch), state)

    def _decayed(self, state: tf.Tensor) -> tf.Tensor:
        decay = tf.cast(tf.constant(self.decay, tf.float32), state.dtype)  # as the op has it
        return state * tf.stack([decay, tf.ones_like(decay), decay])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "clip": self.clip}
