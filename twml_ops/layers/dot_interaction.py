"""The interaction layer of DLRM: the dot products of all pairs of vectors."""

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
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: when called, the input is not [B, F, D] with a known F of at least 2.
    """

    def call(self, inputs: Any) -> tf.Tensor:
        """Multiplies the vectors of one batch.

        Args:
            inputs: float [B, F, D].

        Returns:
            [B, F (F - 1) / 2].
        """
        fields = _fields(inputs.shape)
        products = tf.matmul(inputs, inputs, transpose_b=True)
        first, second = np.triu_indices(fields, 1)
        flat = tf.reshape(products, [-1, fields * fields])
        return tf.gather(flat, first * fields + second, axis=1)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, int]:
        """[B, F (F - 1) / 2]."""
        fields = _fields(input_shape)
        return (input_shape[0], fields * (fields - 1) // 2)


def _fields(shape: Any) -> int:
    if len(shape) != 3 or shape[1] is None or shape[1] < 2:
        raise ValueError(f"inputs must be [B, F, D] with a known F of at least 2, got {shape}")
    return int(shape[1])
