"""Explicit feature crosses: the cross layer of the Deep & Cross Network, version 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._weights import copied


@serializable
class Cross(tf.keras.layers.Layer):
    """`y = x0 * (W x + b) + x` with an elementwise product: a degree more than that of x.

    Wang et al. 2021, "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
    Learning to Rank Systems", equations (1) and (2). Layers are stacked: `x1 = Cross()(x0)`, `x2 =
    Cross()(x0, x1)`. After n layers y is a polynomial of degree n + 1 in the d features of x0. With
    `rank`, W = U V with U [d, rank] and V [rank, d], which costs 2 d rank instead of d^2
    operations; d / 4 is a common choice.

    The layer is called as `tfrs.layers.feature_interaction.Cross` is, and gives the same result for
    the same weights.

    Args:
        rank: Rank of W; None: full.
        use_bias: Whether to add b.
        activation: Keras activation of W x + b, before the product with x0; None: linear.
        diag_scale: Multiple of the identity that is added to W; not negative.
        kernel_initializer: Keras initializer of W, or of U and V.
        bias_initializer: Keras initializer of b.
        kernel_regularizer: Keras regularizer of W, or of U and V.
        bias_regularizer: Keras regularizer of b.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range, or x0 and x differ in width.
    """

    def __init__(
        self,
        rank: int | None = None,
        use_bias: bool = True,
        activation: Any = None,
        diag_scale: float = 0.0,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if rank is not None and (int(rank) != rank or rank < 1):
            raise ValueError(f"rank must be a positive integer or None, got {rank!r}")
        if not 0 <= diag_scale < float("inf"):
            raise ValueError(f"diag_scale must be finite and not negative, got {diag_scale!r}")
        self.rank = None if rank is None else int(rank)
        self.use_bias = use_bias
        self.activation = tf.keras.activations.get(activation)
        self.diag_scale = float(diag_scale)
        self.kernel_initializer = tf.keras.initializers.get(kernel_initializer)
        self.bias_initializer = tf.keras.initializers.get(bias_initializer)
        self.kernel_regularizer = tf.keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = tf.keras.regularizers.get(bias_regularizer)
        self.kernel: Any = None
        self.kernel_u: Any = None
        self.kernel_v: Any = None
        self.bias: Any = None

    def build(self, x0_shape: Any, x_shape: Any = None) -> None:
        """Creates W, or U and V, and b."""
        width = x0_shape[-1]
        if width is None or len(x0_shape) < 2:
            raise ValueError(f"x0 must be [..., d] with a known d, got the shape {x0_shape}")
        if x_shape is not None and x_shape[-1] != width:
            raise ValueError(f"x must have the width of x0, {width}, got {x_shape[-1]}")
        if self.rank is None:
            self.kernel = self._add_kernel("kernel", (width, width))
        else:
            self.kernel_u = self._add_kernel("kernel_u", (width, self.rank))
            self.kernel_v = self._add_kernel("kernel_v", (self.rank, width))
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(width,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                trainable=True,
            )
        super().build(x0_shape)

    def _add_kernel(self, name: str, shape: tuple[int, int]) -> Any:
        # A new initializer each time: a seeded one would give both kernels the same values.
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=copied(self.kernel_initializer),
            regularizer=self.kernel_regularizer,
            trainable=True,
        )

    def call(self, x0: Any, x: Any = None) -> tf.Tensor:
        """Crosses x with x0.

        Args:
            x0: Float [..., d], the features before any cross.
            x: Float [..., d], the output of the layer before; None: x0.

        Returns:
            [..., d].

        Raises:
            ValueError: x0 and x differ in width.
        """
        return self.crossed(x0, x0 if x is None else x, self.ordered_weights())

    def ordered_weights(self) -> list[Any]:
        """The weights of the layer, which is built, in the order of the formula.

        Returns:
            W, or U and V, and b if there is one.
        """
        found = (self.kernel, self.kernel_u, self.kernel_v, self.bias)
        return [weight for weight in found if weight is not None]

    def crossed(self, x0: Any, x: Any, weights: Sequence[Any]) -> tf.Tensor:
        """Crosses x with x0 by weights that need not be in this process' variables.

        Args:
            x0: As of `call`.
            x: Float [..., d].
            weights: Variables or tensors, as of `ordered_weights`.

        Returns:
            [..., d].

        Raises:
            ValueError: x0 and x differ in width.
        """
        if x.shape[-1] != x0.shape[-1]:
            raise ValueError(f"x must have the width of x0, {x0.shape[-1]}, got {x.shape[-1]}")
        product = x
        for kernel in weights[: 1 if self.rank is None else 2]:
            product = tf.linalg.matmul(product, tf.convert_to_tensor(kernel))
        if self.use_bias:
            product = product + tf.convert_to_tensor(weights[-1])
        if self.activation is not None:
            product = self.activation(product)
        if self.diag_scale:
            product = product + self.diag_scale * x
        return x0 * product + x

    def compute_output_shape(self, x0_shape: Any, x_shape: Any = None) -> Any:
        """The shape of x0."""
        del x_shape
        return x0_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        initializers, regularizers = tf.keras.initializers, tf.keras.regularizers
        return {
            **super().get_config(),
            "rank": self.rank,
            "use_bias": self.use_bias,
            "activation": tf.keras.activations.serialize(self.activation),
            "diag_scale": self.diag_scale,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "bias_initializer": initializers.serialize(self.bias_initializer),
            "kernel_regularizer": regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": regularizers.serialize(self.bias_regularizer),
        }
