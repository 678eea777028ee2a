"""Online normalization by the largest magnitude of each feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import serializable
from twml_ops.layers._feature_norm import FeatureNorm


@serializable
class MaxNorm(FeatureNorm):
    """`y = clip(v / max(m, epsilon), -1, 1) + b`, m the largest |v| its feature has shown.

    In training m is raised to the batch's largest |v| of each feature before the batch is
    normalized with it: the values seen in training always lie in [-1, 1], whatever their order, and
    no pass over the data is needed. Inference leaves m alone, and so does a layer with
    `trainable = False`. m counts as a constant for the gradient; that of b is sparse.

    Takes any batch form and returns it; a binary batch (ids alone, all 1) becomes a pair.

    Args:
        input_dim: N, size of the id space; ids outside [0, N) are an error.
        epsilon: least divisor; positive and not denormal.
        use_bias: whether each feature has a trainable bias b, which tells its presence from its
            absence.
        bias_initializer: of the bias [N].
        nonfinite: what becomes of NaN and infinite values, which never enter m. "error": the batch
            is refused. "zero": they count as 0 (y = b).
        decay: for drifting data, in (0, 1]: before m is raised it is multiplied by this, once a
            training batch that has the feature. 0.999 forgets a peak to a half in 700 such batches.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range, or an input of no batch form.
        tf.errors.InvalidArgumentError: when called, an id out of range, or a non-finite value
            where that is an error.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(input_dim, epsilon, decay, use_bias, bias_initializer, nonfinite, **kwargs)

    def _op(self) -> Callable[..., tf.Tensor]:
        return ops.max_norm

    def merge(self, *others: MaxNorm) -> None:
        """Takes over what other layers of the same size have seen: m becomes the largest of all.

        Replicas or processes that saw parts of the data merge so; the biases stay this layer's.

        Raises:
            ValueError: a layer of another `input_dim`, or one that is not built.
        """
        self._check_mergeable(others)
        for other in others:
            self.max_abs.assign(tf.maximum(tf.convert_to_tensor(self.max_abs), other.max_abs))
