"""Online normalization by the largest magnitude of each feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import serializable
from twml_ops.layers._feature_norm import FeatureNorm
from twml_ops.placement import Placement
from twml_ops.placement.device import StatePlacement, check_state_placement, state_placement


@serializable
class MaxNorm(FeatureNorm):
    """`y = clip(v / max(m, epsilon), -1, 1) + b`, where m is the largest |v| of the feature so far.

    In training, m is raised to the largest |v| of each feature in the batch before the batch is
    normalized. Values are therefore always in [-1, 1] in training, in any order, without a separate
    pass over the data. Inference does not change m, and neither does a layer with `trainable =
    False`. m is a constant for the gradient; the gradient by b is sparse.

    The layer takes any batch form and returns the same form; a binary batch (ids alone, all values
    1) becomes a pair.

    Args:
        input_dim: N, size of the id space. Ids outside of [0, N) are an error.
        epsilon: Smallest divisor; positive and not denormal.
        use_bias: Whether each feature has a trainable bias b, which distinguishes a present feature
            from an absent one.
        bias_initializer: Keras initializer of the bias [N].
        nonfinite: What happens to NaN and infinite values, which never change m. "error": the op
            fails. "zero": they count as 0 (y = b).
        decay: In (0, 1], for drifting data. In training, m of each feature in the batch is
            multiplied by it before it is raised. With 0.999 a peak has decayed to a half after 700
            such batches.
        placement: "auto": m and b are in the memory of the host, or where a `placement_scope` of a
            `DevicePlacement` puts them. "host": in the memory of the host. "device": in the memory
            of the GPU, if there is one; this needs the library of CUDA kernels, and the layer
            cannot be used in `tf.data.Dataset.map`.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range, or the input has no batch form.
        tf.errors.InvalidArgumentError: When called, an id is out of range, or a value is not finite
            and `nonfinite` is "error". With the state on a GPU a later call raises it.
    """

    state_name = "max_abs"
    max_abs: Any

    def __init__(
        self,
        input_dim: int,
        epsilon: float = 1e-6,
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        nonfinite: Literal["error", "zero"] = "error",
        decay: float = 1.0,
        placement: StatePlacement = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(input_dim, epsilon, decay, use_bias, bias_initializer, nonfinite, **kwargs)
        self.placement = check_state_placement(placement)

    def _op(self) -> Callable[..., tf.Tensor]:
        return ops.max_norm

    def _place(self) -> Placement:
        return state_placement(self.placement)

    def merge(self, *others: MaxNorm) -> None:
        """Merges the state of other layers: m becomes the largest of all.

        Use it for processes that have read different parts of the data. The biases are not merged.

        Args:
            *others: Built layers with the same `input_dim`.

        Raises:
            ValueError: A layer has another `input_dim` or is not built.
        """
        self._check_mergeable(others)
        for other in others:
            self.max_abs.assign(tf.maximum(tf.convert_to_tensor(self.max_abs), other.max_abs))

    def state_of_batch(self, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        """The largest |v| of the features of a batch; see `FeatureNorm.state_of_batch`.

        Args:
            before: m before the batch, [N].
            after: m after it.

        Returns:
            [N]; 0 where m has only decayed, and -1 where it was left as it was.
        """
        largest = tf.where(after > self._decayed(before), after, tf.zeros_like(after))
        return tf.where(tf.equal(after, before), -tf.ones_like(after), largest)

    def join_batches(self, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """See `FeatureNorm.join_batches`."""
        return tf.maximum(one, other)

    def state_with(self, state: tf.Tensor, of_batch: tf.Tensor) -> tf.Tensor:
        """See `FeatureNorm.state_with`."""
        return tf.where(of_batch < 0, state, tf.maximum(self._decayed(state), of_batch))

    def _decayed(self, state: tf.Tensor) -> tf.Tensor:
        return state * tf.constant(self.decay, state.dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "placement": self.placement}
