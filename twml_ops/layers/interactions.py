"""The products of all pairs of vectors: the interactions of DLRM and of factorization machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops._keras import serializable


@serializable
class DotInteraction(tf.keras.layers.Layer):
    """The dot products v_i · v_j, i < j, of F vectors: [B, F, D] → [B, F (F - 1) / 2].

    Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation
    Systems". The pairs are in the order (0, 1), (0, 2), …, (1, 2), ….

    Args:
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: When called, the input is not [B, F, D] with a known F of at least 2.
    """

    def call(self, inputs: Any) -> tf.Tensor:
        """Multiplies the vectors of one batch.

        Args:
            inputs: float [B, F, D].

        Returns:
            The products, [B, F (F - 1) / 2].
        """
        fields = _fields(inputs.shape)
        products = tf.matmul(inputs, inputs, transpose_b=True)
        first, second = np.triu_indices(fields, 1)
        flat = tf.reshape(products, [-1, fields * fields])
        return tf.gather(flat, first * fields + second, axis=1)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, int]:
        """Returns the shape of the products, [B, F (F - 1) / 2]."""
        fields = _fields(input_shape)
        return (input_shape[0], fields * (fields - 1) // 2)


def _fields(shape: Any) -> int:
    if len(shape) != 3 or shape[1] is None or shape[1] < 2:
        raise ValueError(f"inputs must be [B, F, D] with a known F of at least 2, got {shape}")
    return int(shape[1])


@serializable
class FactorizationMachine(tf.keras.layers.Layer):
    """The sum, over all pairs of F features, of the products of their vectors.

    `sum_{i<j} v_i * v_j = ((sum_i v_i)^2 - sum_i v_i^2) / 2`, computed in O(F d) instead of O(F^2
    d); Rendle 2010, "Factorization Machines". With `pool=True` the d components are summed, which
    gives the second-order term of a factorization machine. Without, they are returned, which is the
    bi-interaction pooling of He and Chua 2017, "Neural Factorization Machines for Sparse Predictive
    Analytics".

    The input is the output of `GroupedSparseLinear` for tables of equal width: a dict or list of
    [B, d], or one tensor [B, F, d]. Features must be in separate vectors; a `SparseLinear` layer
    has already summed them.

    Args:
        pool: Whether to return [B, 1] instead of [B, d].
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: When called, inputs have other shapes or differ in width.
    """

    def __init__(self, pool: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pool = bool(pool)

    def call(self, inputs: Any) -> tf.Tensor:
        """Sums the products of all pairs.

        Args:
            inputs: Dict or list of float [B, d], or one float [B, F, d].

        Returns:
            [B, 1], or [B, d] if `pool` is False.
        """
        _width(tf.nest.map_structure(lambda t: t.shape, inputs))
        if isinstance(inputs, (dict, list, tuple)):
            vectors = tf.nest.flatten(inputs)
            total, squares = tf.add_n(vectors), tf.add_n([v * v for v in vectors])
        else:
            total, squares = tf.reduce_sum(inputs, 1), tf.reduce_sum(inputs * inputs, 1)
        products = 0.5 * (total * total - squares)
        return tf.reduce_sum(products, 1, keepdims=True) if self.pool else products

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, Any]:
        """Returns the shape of the result: [B, 1], or [B, d] if `pool` is False."""
        rows, width = _width(input_shape)
        return (rows, 1 if self.pool else width)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "pool": self.pool}


def _width(shapes: Any) -> tuple[Any, Any]:
    """Returns B and d, from the shapes of the inputs."""
    if isinstance(shapes, dict):
        shapes = list(shapes.values())
    if isinstance(shapes, (list, tuple)) and shapes and hasattr(shapes[0], "__len__"):
        each = [tuple(s) for s in shapes]
        if all(len(s) == 2 and s[1] == each[0][1] for s in each):
            return each[0]
    elif len(shapes) == 3:
        return shapes[0], shapes[2]
    raise ValueError(
        "inputs must be a dict or list of [B, d] of one width, or one tensor [B, F, d]; "
        f"got the shapes {shapes}"
    )
