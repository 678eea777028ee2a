"""Choices that each field makes by itself: the width of its vectors and the rows of its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops.research.architecture_search.choice import ascending, masks


class FieldWidths:
    """The width of each field's vectors: [B, F, D] → [B, F, D] with zeros behind the width.

    All widths are the first components of one vector (mixed dimensions, Ginart et al. 2021). In the
    network that is found, a table has vectors of the width only.

    Args:
        candidates: K ascending widths.

    Attributes:
        name: `field_units`, the option of `research.dhen`.
        candidates: The widths.

    Raises:
        ValueError: They are not ascending positive integers.
    """

    name = "field_units"

    def __init__(self, candidates: Sequence[int]) -> None:
        self.candidates = ascending(self.name, candidates, 1)

    def combine(self, tensors: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """Masks the vectors.

        Args:
            tensors: The vectors [B, F, D], D the largest width. Those behind the fields of the
                weights, of raw sparse ids, are kept.
            weights: Float [F, K].

        Returns:
            [B, F, D].
        """
        kept = tf.matmul(weights, tf.constant(masks(self.candidates)))
        missing = int(tensors[0].shape[1]) - int(kept.shape[0])
        return tensors[0] * tf.pad(kept, [[0, missing], [0, 0]], constant_values=1.0)


class FieldRows:
    """How many categories of a field have a row of their own; all others share one.

    With weights w of the candidates R, row r of the table, numbered by frequency from 1, gives
    p E_r + (1 - p) S, where p = sum_k w_k [r ≤ R_k] and S is a vector of the field.

    Args:
        candidates: K ascending numbers of rows, as `max_rows` of `layers.CategoryRows`.

    Attributes:
        name: `max_rows`, the option of `research.dhen`.
        candidates: The numbers.

    Raises:
        ValueError: They are not ascending positive integers.
    """

    name = "max_rows"

    def __init__(self, candidates: Sequence[int]) -> None:
        self.candidates = ascending(self.name, candidates, 1)

    def combine(self, tensors: Sequence[tf.Tensor], weights: tf.Tensor) -> tf.Tensor:
        """Replaces the vectors of rows that narrower tables lack.

        Args:
            tensors: The vectors [B, F, D], of which the first G are of categorical fields; the
                shared vectors [B, G, D]; and the rows [B, G].
            weights: Float [G, K].

        Returns:
            [B, F, D].
        """
        vectors, shared, rows = tensors
        count = int(rows.shape[1])
        has_row = tf.cast(rows[:, :, None] <= tf.constant(self.candidates, rows.dtype), tf.float32)
        kept = tf.einsum("bgk,gk->bg", has_row, weights)[:, :, None]
        mixed = kept * vectors[:, :count] + (1 - kept) * shared
        return tf.concat([mixed, vectors[:, count:]], axis=1)

    def rows(self, num_rows: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Rows of the table of each field with each candidate.

        Args:
            num_rows: Rows of each field with all its categories; 2 of them belong to none.

        Returns:
            Float [G, K].
        """
        own = np.minimum(np.array(self.candidates), np.array(num_rows)[:, None] - 2)
        return (own + 2).astype(np.float32)


FieldChoice = FieldWidths | FieldRows


class SharedVectors(tf.keras.layers.Layer):
    """A trained vector of each field: inputs [B, any, D] → [B, num_fields, D].

    Args:
        num_fields: G.
        **kwargs: Arguments of `tf.keras.layers.Layer`.
    """

    def __init__(self, num_fields: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_fields = num_fields

    def build(self, input_shape: Any) -> None:
        """Creates the vectors."""
        shape = (self.num_fields, int(input_shape[2]))
        self.vectors = self.add_weight(name="vectors", shape=shape, initializer="zeros")
        super().build(input_shape)

    def call(self, inputs: Any) -> tf.Tensor:
        """The vectors, for each example."""
        vectors = tf.convert_to_tensor(self.vectors)
        return tf.broadcast_to(vectors, tf.concat([tf.shape(inputs)[:1], tf.shape(vectors)], 0))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[B, num_fields, D]."""
        return (input_shape[0], self.num_fields, input_shape[2])


class FieldProjections(tf.keras.layers.Layer):
    """Multiplies the vectors of each field by a matrix of it: [B, F, D] → [B, F, units].

    Args:
        units: Width of the outputs.
        **kwargs: Arguments of `tf.keras.layers.Layer`.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape: Any) -> None:
        """Creates the matrices."""
        shape = (*map(int, input_shape[1:]), self.units)
        scale = shape[1] ** -0.5
        uniform = tf.keras.initializers.RandomUniform(-scale, scale)
        self.matrices = self.add_weight(name="matrices", shape=shape, initializer=uniform)
        super().build(input_shape)

    def call(self, inputs: Any) -> tf.Tensor:
        """The products."""
        return tf.einsum("bfd,fdu->bfu", inputs, tf.convert_to_tensor(self.matrices))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[B, F, units]."""
        return (*input_shape[:2], self.units)
