"""Turns continuous fields into standardized logarithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops._keras import as_declared, no_autocast, serializable
from twml_ops.layers._arguments import check_positive_integer


class FieldMoments:
    """Sums of the logarithms of each field, from which their means and deviations follow.

    Args:
        num_fields: number of fields, C.
    """

    def __init__(self, num_fields: int) -> None:
        self._sums = np.zeros((3, num_fields))  # of 1, of y and of y²

    def update(self, numbers: Any, present: Any) -> None:
        """Adds a batch.

        Args:
            numbers: floats [B, C].
            present: bool [B, C].

        Raises:
            ValueError: the arrays have another shape.
        """
        numbers, present = np.asarray(numbers, np.float64), np.asarray(present, bool)
        shape = (len(numbers), self._sums.shape[1])
        if numbers.shape != shape or present.shape != shape:
            raise ValueError(
                f"data must have pairs of [B, {shape[1]}], got {numbers.shape} and {present.shape}"
            )
        y = np.sign(numbers) * np.log1p(np.abs(numbers))
        used = present & np.isfinite(y)
        y = np.where(used, y, 0.0)
        self._sums += [used.sum(axis=0), y.sum(axis=0), (y * y).sum(axis=0)]

    def merge(self, *others: FieldMoments) -> None:
        """Adds the sums of other parts of the data.

        Args:
            *others: of as many fields.
        """
        for other in others:
            self._sums += other._sums

    def scale_and_offset(self) -> tuple[Any, Any]:
        """The means and scales that standardize the logarithms.

        Returns:
            (s, t), float64 [C] each, such that `s y + t` has the mean 0 and the deviation 1. Both
            are 0 if y is constant.
        """
        count, total, squares = self._sums
        mean = total / np.maximum(count, 1)
        variance = squares / np.maximum(count, 1) - mean**2
        varies = variance > 1e-9 * np.maximum(mean**2, 1e-30)
        scale = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0)
        return scale, -mean * scale


@serializable
class FieldLogarithms(tf.keras.layers.Layer):
    """Replaces a number x by `sign(x) log(1 + |x|)`, standardized by the training data.

    Counts and amounts are often distributed like log-normal variables; their logarithms keep
    differences between large values that ranks lose. The result is clipped to [-5, 5].

    Args:
        num_fields: number of fields, C.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: `num_fields` is not a positive integer.
    """

    scale: Any
    offset: Any
    limit = 5.0

    def __init__(self, num_fields: int, **kwargs: Any) -> None:
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self.num_fields = check_positive_integer("num_fields", num_fields)

    def build(self, input_shape: Any = None) -> None:
        """Creates the scale [C] and the offset [C], 1 and 0 before `adapt`."""
        del input_shape
        for name, value in (("scale", "ones"), ("offset", "zeros")):
            weight = self.add_weight(
                name=name,
                shape=(self.num_fields,),
                dtype="float32",
                initializer=value,
                trainable=False,
                **no_autocast(),
            )
            setattr(self, name, weight)
        super().build(None)

    def new_moments(self) -> FieldMoments:
        """Empty sums for `adapt_from_moments`.

        Returns:
            The sums.
        """
        return FieldMoments(self.num_fields)

    def adapt(self, data: Any) -> None:
        """Computes the means and deviations in one pass over the data.

        Args:
            data: iterable, such as a `tf.data.Dataset`, of pairs (numbers, present), float and bool
                [B, C].

        Raises:
            ValueError: the elements have another shape.
        """
        moments = self.new_moments()
        for numbers, present in data:
            moments.update(numbers, present)
        self.adapt_from_moments(moments)

    def adapt_from_moments(self, moments: FieldMoments) -> None:
        """Computes the means and deviations from sums.

        Args:
            moments: made by `new_moments` of a layer with as many fields.
        """
        if not self.built:
            self.build()
        for weight, value in zip(
            (self.scale, self.offset), moments.scale_and_offset(), strict=True
        ):
            weight.assign(value.astype(np.float32))

    def call(self, inputs: Any) -> tf.Tensor:
        """Transforms one batch.

        Args:
            inputs: a pair (numbers, present), float and bool [B, C].

        Returns:
            float32 [B, C], 0 where the number is missing.

        Raises:
            ValueError: the numbers have another shape.
        """
        numbers, present = inputs[0], as_declared(inputs[1], tf.bool)
        if numbers.shape.rank != 2 or numbers.shape[1] != self.num_fields:
            raise ValueError(f"numbers must be [B, {self.num_fields}], got {numbers.shape}")
        x = tf.where(present, tf.cast(numbers, tf.float32), 0.0)
        y = tf.sign(x) * tf.math.log1p(tf.minimum(tf.abs(x), x.dtype.max))  # inf times 0 is NaN
        scale, offset = (tf.convert_to_tensor(w) for w in (self.scale, self.offset))
        return tf.where(present, tf.clip_by_value(y * scale + offset, -self.limit, self.limit), 0.0)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """`[B, C]`."""
        return tuple(input_shape[0])

    def get_config(self) -> dict[str, Any]:
        """The constructor's argument."""
        config = super().get_config()
        config.pop("autocast", None)
        return {**config, "num_fields": self.num_fields}
