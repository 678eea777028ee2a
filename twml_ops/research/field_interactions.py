"""Interactions of the vectors of fields, [B, F, D] → [B, L, D]: the modules of DHEN.

Zhang et al. 2022, "DHEN: A Deep and Hierarchical Ensemble Network for Large-Scale Click-Through
Rate Prediction", section 3.2.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._weights import copied


class FieldInteraction(tf.keras.layers.Layer, abc.ABC):
    """Base class: L vectors from the F vectors of a batch.

    A subclass defines `build_interaction`, which adds the weights, and `interact`.

    Args:
        num_outputs: L, positive; None: F.
        kernel_initializer: Keras initializer of all matrices.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: `num_outputs` is not positive; or, when the layer is built, the input is not
            [B, F, D] with known F and D.
    """

    def __init__(
        self,
        num_outputs: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_outputs is not None:
            check_positive("num_outputs", num_outputs)
        self.num_outputs = num_outputs
        self.kernel_initializer = tf.keras.initializers.get(kernel_initializer)

    def build(self, input_shape: Any) -> None:
        """Creates the weights."""
        fields, width = fields_and_width(input_shape)
        self.build_interaction(fields, width, self.num_outputs or fields)
        super().build(input_shape)

    @abc.abstractmethod
    def build_interaction(self, fields: int, width: int, outputs: int) -> None:
        """Adds the weights with `add`.

        Args:
            fields: F.
            width: D.
            outputs: L.
        """

    @abc.abstractmethod
    def interact(self, x: tf.Tensor, outputs: int) -> tf.Tensor:
        """Computes the outputs.

        Args:
            x: [B, F, D].
            outputs: L.

        Returns:
            [B, L, D].
        """

    def call(self, inputs: Any) -> tf.Tensor:
        """Computes the outputs of one batch.

        Args:
            inputs: Float [B, F, D].

        Returns:
            [B, L, D].
        """
        return self.interact(inputs, self.num_outputs or int(inputs.shape[1]))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, int, int]:
        """[B, L, D]."""
        fields, width = fields_and_width(input_shape)
        return (input_shape[0], self.num_outputs or fields, width)

    def add(self, name: str, *shape: int, initializer: Any = None) -> None:
        """Adds a weight, which `weight` reads.

        Args:
            name: Its name.
            *shape: Its shape.
            initializer: Keras initializer; None: `kernel_initializer`.
        """
        if initializer is None:
            # A new one each time: a seeded one would give all matrices the same values.
            initializer = copied(self.kernel_initializer)
        made = self.add_weight(name=name, shape=shape, initializer=initializer, trainable=True)
        setattr(self, name, made)

    def weight(self, name: str) -> tf.Tensor:
        """The value of a weight.

        Args:
            name: Its name.

        Returns:
            The value, in the shape of the weight.
        """
        return tf.convert_to_tensor(getattr(self, name))

    def affine(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """X [..., n] times the matrix `name`, plus the bias `name`_bias.

        Args:
            x: [..., n].
            name: Of a weight [n, m].

        Returns:
            [..., m].
        """
        return tf.tensordot(x, self.weight(name), 1) + self.weight(f"{name}_bias")

    def add_affine(self, name: str, rows: int, columns: int) -> None:
        """Adds the matrix and the bias of `affine`.

        Args:
            name: Of the matrix.
            rows: n.
            columns: m.
        """
        self.add(name, rows, columns)
        self.add(f"{name}_bias", columns, initializer="zeros")

    def mix(self, x: tf.Tensor) -> tf.Tensor:
        """L linear combinations of the F vectors: `FieldLinear` with the weight `fields`.

        Args:
            x: [B, F, D].

        Returns:
            [B, L, D].
        """
        return tf.einsum("bfd,fl->bld", x, self.weight("fields"))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_outputs": self.num_outputs,
            "kernel_initializer": tf.keras.initializers.serialize(self.kernel_initializer),
        }


@serializable
class FieldLinear(FieldInteraction):
    """L linear combinations of the F vectors, the same for each of the D components.

    Args:
        num_outputs: L, positive; None: F.
        kernel_initializer: Keras initializer of the matrix [F, L].
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: `num_outputs` is not positive; or, when the layer is built, the input is not
            [B, F, D] with known F and D.
    """

    def build_interaction(self, fields: int, width: int, outputs: int) -> None:
        """See the base class."""
        del width
        self.add("fields", fields, outputs)

    def interact(self, x: tf.Tensor, outputs: int) -> tf.Tensor:
        """See the base class."""
        del outputs
        return self.mix(x)


@serializable
class FieldDot(FieldInteraction):
    """A dense net on the dot products of all pairs of vectors (AdvancedDLRM).

    Args:
        num_outputs: L, positive; None: F.
        hidden: Widths of the layers with ReLU between the products and the L D outputs.
        kernel_initializer: Keras initializer of the matrices.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is not positive; or, when the layer is built, the input is not
            [B, F, D] with known F and D, or F is 1.
    """

    def __init__(
        self,
        num_outputs: int | None = None,
        hidden: Sequence[int] = (64,),
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_outputs, kernel_initializer, **kwargs)
        for width in hidden:
            check_positive("hidden", width)
        self.hidden = tuple(int(width) for width in hidden)

    def build_interaction(self, fields: int, width: int, outputs: int) -> None:
        """See the base class.

        Raises:
            ValueError: The input does not fit.
        """
        if fields < 2:
            raise ValueError(f"inputs of {self.name!r} must have at least two vectors, got one")
        widths = [fields * (fields - 1) // 2, *self.hidden, outputs * width]
        for i in range(len(widths) - 1):
            self.add_affine(f"dense_{i}", widths[i], widths[i + 1])

    def interact(self, x: tf.Tensor, outputs: int) -> tf.Tensor:
        """See the base class."""
        fields, width = int(x.shape[1]), int(x.shape[2])
        products = tf.reshape(tf.matmul(x, x, transpose_b=True), [-1, fields * fields])
        first, second = np.triu_indices(fields, 1)
        y = tf.gather(products, first * fields + second, axis=1)
        for i in range(len(self.hidden)):
            y = tf.nn.relu(self.affine(y, f"dense_{i}"))
        return tf.reshape(self.affine(y, f"dense_{len(self.hidden)}"), [-1, outputs, width])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "hidden": list(self.hidden)}


@serializable
class FieldAttention(FieldInteraction):
    """A layer of a transformer's encoder over the fields, then `FieldLinear`.

    Vaswani et al. 2017, "Attention Is All You Need": self-attention of `num_heads` heads, and a net
    of one hidden layer with ReLU for each vector. The result of each is added to its input and
    normalized.

    Args:
        num_outputs: L, positive; None: F.
        num_heads: Number of heads, which divides D.
        hidden: Width of the hidden layer; None: 2 D.
        epsilon: Added to the variance in the normalization.
        kernel_initializer: Keras initializer of the matrices.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is not positive; or, when the layer is built, the input is not
            [B, F, D] with known F and D, or `num_heads` does not divide D.
    """

    def __init__(
        self,
        num_outputs: int | None = None,
        num_heads: int = 1,
        hidden: int | None = None,
        epsilon: float = 1e-3,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_outputs, kernel_initializer, **kwargs)
        check_positive("num_heads", num_heads)
        if hidden is not None:
            check_positive("hidden", hidden)
        self.num_heads = int(num_heads)
        self.hidden = None if hidden is None else int(hidden)
        self.epsilon = float(epsilon)

    def build_interaction(self, fields: int, width: int, outputs: int) -> None:
        """See the base class.

        Raises:
            ValueError: The input does not fit.
        """
        if width % self.num_heads:
            raise ValueError(f"num_heads must divide the width {width}, got {self.num_heads}")
        for name in ("query", "key", "value", "output_projection"):
            self.add_affine(name, width, width)
        hidden = self.hidden or 2 * width
        self.add_affine("dense_0", width, hidden)
        self.add_affine("dense_1", hidden, width)
        for name in ("attention_norm", "dense_norm"):
            self.add(f"{name}_scale", width, initializer="ones")
            self.add(f"{name}_offset", width, initializer="zeros")
        self.add("fields", fields, outputs)

    def interact(self, x: tf.Tensor, outputs: int) -> tf.Tensor:
        """See the base class."""
        del outputs
        fields, width = int(x.shape[1]), int(x.shape[2])
        heads, part = self.num_heads, width // self.num_heads

        def split(name: str) -> tf.Tensor:  # [B, heads, F, part]
            by_head = tf.reshape(self.affine(x, name), [-1, fields, heads, part])
            return tf.transpose(by_head, [0, 2, 1, 3])

        scores = tf.matmul(split("query"), split("key"), transpose_b=True) * part**-0.5
        mixed = tf.matmul(tf.nn.softmax(scores), split("value"))
        mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, fields, width])
        x = self._normalized(x + self.affine(mixed, "output_projection"), "attention_norm")
        dense = self.affine(tf.nn.relu(self.affine(x, "dense_0")), "dense_1")
        return self.mix(self._normalized(x + dense, "dense_norm"))

    def _normalized(self, x: tf.Tensor, name: str) -> tf.Tensor:
        scale, offset = self.weight(f"{name}_scale"), self.weight(f"{name}_offset")
        return layer_norm(x, scale, offset, self.epsilon)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden": self.hidden,
            "epsilon": self.epsilon,
        }


@serializable
class FieldCross(FieldInteraction):
    """A cross layer on the F D components, x * (W x + b) + x, then `FieldLinear`.

    Wang et al. 2021, "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
    Learning to Rank Systems".

    Args:
        num_outputs: L, positive; None: F.
        rank: Rank of W, positive; None: full.
        kernel_initializer: Keras initializer of the matrices.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is not positive; or, when the layer is built, the input is not
            [B, F, D] with known F and D.
    """

    def __init__(
        self,
        num_outputs: int | None = None,
        rank: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_outputs, kernel_initializer, **kwargs)
        if rank is not None:
            check_positive("rank", rank)
        self.rank = None if rank is None else int(rank)

    def build_interaction(self, fields: int, width: int, outputs: int) -> None:
        """See the base class."""
        size = fields * width
        if self.rank is None:
            self.add_affine("cross", size, size)
        else:
            self.add("cross_factor", size, self.rank)
            self.add_affine("cross", self.rank, size)
        self.add("fields", fields, outputs)

    def interact(self, x: tf.Tensor, outputs: int) -> tf.Tensor:
        """See the base class."""
        del outputs
        fields, width = int(x.shape[1]), int(x.shape[2])
        flat = tf.reshape(x, [-1, fields * width])
        reduced = flat if self.rank is None else tf.matmul(flat, self.weight("cross_factor"))
        crossed = flat * self.affine(reduced, "cross") + flat
        return self.mix(tf.reshape(crossed, [-1, fields, width]))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "rank": self.rank}


@serializable
class FieldConvolution(FieldInteraction):
    """A convolution over fields and components, [F, D] as an image, then `FieldLinear`.

    `filters` kernels of `kernel_size` × `kernel_size` with padding and ReLU, and a linear
    combination of their images.

    Args:
        num_outputs: L, positive; None: F.
        filters: Number of kernels, positive.
        kernel_size: Their length and width, positive.
        kernel_initializer: Keras initializer of the kernels and matrices.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is not positive; or, when the layer is built, the input is not
            [B, F, D] with known F and D.
    """

    def __init__(
        self,
        num_outputs: int | None = None,
        filters: int = 8,
        kernel_size: int = 3,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_outputs, kernel_initializer, **kwargs)
        check_positive("filters", filters)
        check_positive("kernel_size", kernel_size)
        self.filters, self.kernel_size = int(filters), int(kernel_size)

    def build_interaction(self, fields: int, width: int, outputs: int) -> None:
        """See the base class."""
        del width
        self.add("kernels", self.kernel_size, self.kernel_size, 1, self.filters)
        self.add("kernels_bias", self.filters, initializer="zeros")
        self.add_affine("images", self.filters, 1)
        self.add("fields", fields, outputs)

    def interact(self, x: tf.Tensor, outputs: int) -> tf.Tensor:
        """See the base class."""
        del outputs
        images = tf.nn.conv2d(x[..., None], self.weight("kernels"), strides=1, padding="SAME")
        images = tf.nn.relu(images + self.weight("kernels_bias"))
        return self.mix(self.affine(images, "images")[..., 0])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = {"filters": self.filters, "kernel_size": self.kernel_size}
        return {**super().get_config(), **config}


def layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalizes the last axis (Ba et al. 2016, "Layer Normalization").

    Args:
        x: [..., D].
        scale: [D].
        offset: [D].
        epsilon: Added to the variance.

    Returns:
        [..., D].
    """
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + epsilon) * scale + offset


def fields_and_width(shape: Any) -> tuple[int, int]:
    """F and D of an input [B, F, D].

    Args:
        shape: Of the input.

    Raises:
        ValueError: It has another number of axes, or F or D is unknown.
    """
    if len(shape) != 3 or shape[1] is None or shape[2] is None:
        raise ValueError(f"inputs must be [B, F, D] with known F and D, got the shape {shape}")
    return int(shape[1]), int(shape[2])


def check_positive(argument: str, value: Any) -> None:
    """Checks an argument that is a number of something.

    Args:
        argument: Its name.
        value: Its value.

    Raises:
        ValueError: It is not a positive integer.
    """
    if int(value) != value or value < 1:
        raise ValueError(f"{argument} must be a positive integer, got {value!r}")
