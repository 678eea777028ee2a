"""The rows of the fields of one width, of a `FieldEmbedding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import SparseBatch, as_ids, parse, with_weightless_padding


class FieldTable:
    """The rows of all fields of one width.

    Args:
        units: the width.
        fields: numbers of the fields, ascending.
        num_rows: rows of every field of the layer.
        num_columns: fields of the layer that are columns of its matrix; the others are bags.
        bag_combiner: "sum", "mean" or "sqrtn".
        out_of_range: "wrap" or "error".
    """

    def __init__(
        self,
        units: int,
        fields: list[int],
        num_rows: Sequence[int],
        num_columns: int,
        bag_combiner: str,
        out_of_range: str,
    ) -> None:
        self._bag_combiner, self._out_of_range = bag_combiner, out_of_range
        self.units, self.fields = units, fields
        self._sizes = np.array([num_rows[field] for field in fields])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.num_rows = int(self._sizes.sum())
        self._first_bag = num_columns
        self._num_columns = sum(field < num_columns for field in fields)
        self.variable: Any = None
        self.projection: Any = None

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first row of each field in the table, and the one after its last row."""
        return [(int(a), int(a + n)) for a, n in zip(self._starts, self._sizes, strict=True)]

    def rows_of(
        self, ids: tf.Tensor, first: int, last: int, pooled: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`ops.field_rows` of ids [B, last - first] of the table's fields first .. last."""
        sizes, first_row = self._sizes[first:last].tolist(), int(self._starts[first])
        return ops.field_rows(
            as_ids(ids), sizes, first_row=first_row, pooled=pooled, out_of_range=self._out_of_range
        )

    def parts(self, ids: Any, bags: Sequence[Any], pooled: bool) -> list[SparseBatch]:
        """The segments of the matrix row by row, if the table has columns of it, and of each bag.

        Args:
            ids: the matrix of the layer, an integer tensor.
            bags: the bags of the layer.
            pooled: whether the matrix has one segment for each row.
        """
        columns = self.fields[: self._num_columns]
        parts = []
        if columns:
            chosen = ids if len(columns) == self._first_bag else tf.gather(ids, columns, axis=1)
            rows, splits = self.rows_of(chosen, 0, len(columns), pooled)
            parts.append(SparseBatch(rows, None, splits))
        for position in range(len(columns), len(self.fields)):
            parts.append(self._bag(bags[self.fields[position] - self._first_bag], position))
        return parts

    def _bag(self, bag: Any, position: int) -> SparseBatch:
        batch, _ = parse(tuple(bag) if isinstance(bag, list) else bag)
        batch = with_weightless_padding(batch)
        rows, _ = self.rows_of(batch.ids[:, tf.newaxis], position, position + 1)
        if self._bag_combiner == "sum":
            return batch._replace(ids=rows)
        values = batch.values_or_ones()
        # Sums of weights of both signs could be near 0, and the mean of any size.
        sizes = values * values if self._bag_combiner == "sqrtn" else tf.abs(values)
        segments = tf.ragged.row_splits_to_segment_ids(batch.row_splits, out_type=tf.int64)
        count = tf.shape(batch.row_splits, out_type=tf.int64)[0] - 1
        totals = tf.math.unsorted_segment_sum(sizes, segments, count)
        if self._bag_combiner == "sqrtn":  # without the infinite slope of the root at 0
            totals = tf.where(totals > 0, tf.sqrt(tf.where(totals > 0, totals, 1.0)), 0.0)
        # As in TensorFlow, the vector of a bag without weight is 0.
        values = tf.math.divide_no_nan(values, tf.gather(totals, segments))
        return SparseBatch(rows, values, batch.row_splits)

    def by_field(self, parts: Sequence[SparseBatch]) -> list[SparseBatch]:
        """One batch for each field, of the `parts` that are not pooled."""
        if not self._num_columns:
            return list(parts)
        rows = tf.reshape(parts[0].ids, [-1, self._num_columns])
        splits = tf.range(tf.shape(rows, out_type=tf.int64)[0] + 1)
        columns = tf.unstack(rows, self._num_columns, axis=1)
        return [*(SparseBatch(column, None, splits) for column in columns), *parts[1:]]

    def stacked(self, vectors: tf.Tensor) -> tf.Tensor:
        """[B, fields, units] of the vectors of all segments."""
        per_row, matrix = len(self.fields), self._num_columns
        bags = per_row - matrix
        if not bags:
            return tf.reshape(vectors, [-1, per_row, self.units])
        first = tf.shape(vectors)[0] // per_row * matrix
        of_bags = tf.reshape(vectors[first:], [bags, -1, self.units])
        of_bags = tf.transpose(of_bags, [1, 0, 2])
        if not matrix:
            return of_bags
        of_matrix = tf.reshape(vectors[:first], [-1, matrix, self.units])
        return tf.concat([of_matrix, of_bags], axis=1)


def join_segments(parts: Sequence[SparseBatch]) -> SparseBatch:
    """The segments of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    splits, total = [tf.zeros([1], tf.int64)], tf.zeros([], tf.int64)
    for part in parts:
        splits.append(part.row_splits[1:] + total)
        total += part.row_splits[-1]
    binary = all(part.values is None for part in parts)
    values = None if binary else tf.concat([part.values_or_ones() for part in parts], axis=0)
    return SparseBatch(tf.concat([p.ids for p in parts], axis=0), values, tf.concat(splits, axis=0))
