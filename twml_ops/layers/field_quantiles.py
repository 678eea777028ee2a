"""Turns continuous fields into buckets and ranks, by quantiles of the training data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import core
from twml_ops._keras import as_declared, no_autocast, serializable
from twml_ops.layers._arguments import check_positive_integer


@serializable
class FieldQuantiles(tf.keras.layers.Layer):
    """Replaces numbers by the bucket between two quantiles in which they lie, and by their rank.

    `adapt` finds boundaries that divide the values of each field into `num_bins` buckets of about
    equal size, by a quantile sketch (Karnin, Lang and Liberty, 2016). Equal boundaries count once,
    so a field with few distinct values has fewer buckets. A value v is in bucket i, the number of
    boundaries below v. Its rank is `2 (i + t) / n - 1`, where n is the number of buckets of the
    field and t the position of v between the two boundaries of its bucket, 0.5 in the first and
    the last bucket: a piecewise linear approximation of the quantile transform. Ranks do not depend
    on the scale of the values, and outliers cannot exceed the range [-1, 1].

    Args:
        num_fields: number of fields, C.
        num_bins: number of buckets of a field, at least 2, default 20.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument is out of its range.
    """

    boundaries: Any

    def __init__(self, num_fields: int, num_bins: int = 20, **kwargs: Any) -> None:
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        self.num_fields = check_positive_integer("num_fields", num_fields)
        self.num_bins = check_positive_integer("num_bins", num_bins)
        if self.num_bins < 2:
            raise ValueError(f"num_bins must be at least 2, got {num_bins}")
        self.supports_jit = False  # XLA has no searchsorted of rows of any length

    def build(self, input_shape: Any = None) -> None:
        """Creates the boundaries [C, num_bins - 1], infinite where a field has fewer."""
        del input_shape
        self.boundaries = self.add_weight(
            name="boundaries",
            shape=(self.num_fields, self.num_bins - 1),
            dtype="float32",
            initializer=tf.keras.initializers.Constant(np.inf),
            trainable=False,
            **no_autocast(),
        )
        super().build(None)

    def new_sketch(self) -> core.QuantileSketch:
        """An empty sketch for `adapt_from_sketch`, whose features are the fields 0 to C - 1.

        Returns:
            The sketch.
        """
        return core.QuantileSketch(exact_values=max(1024, self.num_bins))

    def adapt(self, data: Any) -> None:
        """Computes the boundaries in one pass over the data.

        Args:
            data: iterable, such as a `tf.data.Dataset`, of pairs (numbers, present), float and bool
                [B, C].

        Raises:
            ValueError: the elements have another shape.
        """
        sketch = self.new_sketch()
        for numbers, present in data:
            numbers, present = np.asarray(numbers, np.float32), np.asarray(present, bool)
            if numbers.ndim != 2 or numbers.shape[1] != self.num_fields:
                raise ValueError(
                    f"data must have pairs of [B, {self.num_fields}], got {numbers.shape}"
                )
            sketch.update(np.nonzero(present)[1], numbers[present])
        self.adapt_from_sketch(sketch)

    def adapt_from_sketch(self, sketch: core.QuantileSketch) -> None:
        """Computes the boundaries from a sketch.

        Args:
            sketch: made by `new_sketch`, to which the values of field c were added as feature c.
        """
        if not self.built:
            self.build()
        table = np.full((self.num_fields, self.num_bins - 1), np.inf, np.float32)
        fields = [f for f in sketch.feature_ids.tolist() if f < self.num_fields]
        flat, splits = sketch.boundaries(fields, [self.num_bins] * len(fields))
        for field, start, stop in zip(fields, splits[:-1], splits[1:], strict=True):
            table[field, : stop - start] = flat[start:stop]
        self.boundaries.assign(table)

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Transforms one batch.

        Args:
            inputs: a pair (numbers, present), float and bool [B, C].

        Returns:
            (buckets, ranks): int64 [B, C], -1 where the number is missing, and float32 [B, C], 0
            where it is missing.

        Raises:
            ValueError: the numbers have another shape.
        """
        numbers, present = inputs[0], as_declared(inputs[1], tf.bool)
        if numbers.shape.rank != 2 or numbers.shape[1] != self.num_fields:
            raise ValueError(f"numbers must be [B, {self.num_fields}], got {numbers.shape}")
        bounds = tf.convert_to_tensor(self.boundaries)
        x = tf.transpose(tf.where(present, tf.cast(numbers, tf.float32), 0.0))
        bucket = tf.searchsorted(bounds, x)
        last = self.num_bins - 2
        lower = tf.gather(bounds, tf.maximum(bucket - 1, 0), batch_dims=1)
        upper = tf.gather(bounds, tf.minimum(bucket, last), batch_dims=1)
        inner = (bucket > 0) & (bucket <= last) & tf.math.is_finite(upper)
        width = tf.where(inner, upper - lower, 1.0)
        position = tf.where(inner, (x - lower) / width, 0.5)
        finite = tf.cast(tf.math.is_finite(bounds), tf.float32)
        count = tf.reduce_sum(finite, axis=1, keepdims=True) + 1
        ranks = tf.transpose(2 * (tf.cast(bucket, tf.float32) + position) / count - 1)
        buckets = tf.transpose(tf.cast(bucket, tf.int64))
        missing = tf.constant(-1, tf.int64)
        return tf.where(present, buckets, missing), tf.where(present, ranks, 0.0)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {**config, "num_fields": self.num_fields, "num_bins": self.num_bins}
