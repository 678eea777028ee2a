"""Maps ids of categories to rows: frequent categories have a row each, rare ones share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import as_ids
from twml_ops._category_hash import id_keys
from twml_ops._keras import as_declared, is_of_symbolic_build, serializable
from twml_ops.layers._arguments import check_positive_integer
from twml_ops.layers._id_row_map import IdCounts, IdRowMap
from twml_ops.layers._resizable_state import ResizableState
from twml_ops.ops.hash import hash_keys


@serializable
class CategoryRows(ResizableState, tf.keras.layers.Layer):
    """Numbers the categories of each field by their frequency in the training data.

    An id that occurred at least `min_count` times in its field has a row of its own, from 1 for the
    most frequent one. All rarer ids, and those that were not in the data, share row 0. A missing
    value (a negative id) stays -1. `FieldEmbedding(rows.num_rows, units)` takes these rows: no two
    frequent categories share a vector, and the table is as large as the categories need. Ids are
    found by a 62-bit hash of field and id. If U ids have rows, any other id gets the row of one of
    them with probability U / 2^62.

    The state survives `.keras` files, checkpoints and SavedModels. It is 16 bytes for each id that
    has a row. The layer consists of stock TensorFlow ops in an export.

    Args:
        num_fields: number of fields: the columns of the matrix of ids, then the bags.
        min_count: occurrences in the data from which an id has a row of its own, at least 1.
        max_rows: the largest number of ids with a row of their own: an integer, one for each field,
            or None for no limit. The most frequent ids get them.
        num_bags: how many of the fields are bags, at the end.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range.
    """

    state_names: ClassVar[tuple[str, ...]] = ("keys", "rows", "sizes")
    sizing_argument: ClassVar[str] = "num_fields"

    def __init__(
        self,
        num_fields: int,
        min_count: int = 2,
        max_rows: int | Sequence[int] | None = None,
        num_bags: int = 0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "int64")
        super().__init__(**kwargs)
        self.num_fields = check_positive_integer("num_fields", num_fields)
        self.min_count = check_positive_integer("min_count", min_count)
        self.max_rows = None if max_rows is None else _limits(max_rows, self.num_fields)
        if not 0 <= num_bags <= self.num_fields:
            raise ValueError(f"num_bags must be in [0, {self.num_fields}], got {num_bags!r}")
        self.num_bags = int(num_bags)
        self.supports_jit = False  # the hash op cannot be compiled by XLA
        with tf.init_scope(), tf.device("CPU:0"):
            for name in self.state_names:
                empty = tf.zeros([0], tf.int64)
                variable = tf.Variable(empty, trainable=False, shape=[None], name=name)
                setattr(self, f"_{name}", variable)  # checkpoints of Keras 3 ignore lists

    @property
    def adapted(self) -> bool:
        """Whether there is a state: from `adapt`, or loaded."""
        return self._has_state

    @property
    def num_rows(self) -> list[int]:
        """The rows of each field, as `FieldEmbedding` takes them.

        The number of ids that have a row of their own, and two more rows: the shared one and the
        one of missing values.
        """
        self._check_adapted()
        return [int(n) + 2 for n in self._sizes.numpy()]

    def new_counts(self) -> IdCounts:
        """Empty counts with the layer's fields, for `count`.

        Returns:
            The counts; see `adapt_from_counts`.
        """
        return IdCounts(self.num_fields)

    def count(self, counts: IdCounts, inputs: Any) -> None:
        """Adds the ids of a batch to counts.

        Args:
            counts: made by `new_counts`.
            inputs: what the layer is called with.

        Raises:
            ValueError: inputs of another form.
        """
        matrix, bags = self._split(inputs)
        if matrix is not None:
            ids = np.asarray(matrix)
            for field in range(ids.shape[1]):
                counts.update(field, ids[:, field])
        for i, bag in enumerate(bags):
            counts.update(self.num_fields - self.num_bags + i, bag.flat_values)

    def adapt(self, data: Any) -> None:
        """Counts the ids in one pass over the data; rows of an earlier call are dropped.

        Args:
            data: iterable, such as a `tf.data.Dataset`, of what the layer is called with.

        Raises:
            ValueError: elements of another form. The state is unchanged.
        """
        counts = self.new_counts()
        for element in data:
            self.count(counts, element)
        self.adapt_from_counts(counts)

    def adapt_from_counts(self, *counts: IdCounts) -> None:
        """Numbers the ids of counts, such as one of each process that has read data.

        Args:
            *counts: made by `new_counts` of a layer with as many fields. They are not changed.

        Raises:
            ValueError: counts of another number of fields.
        """
        self._extend(IdRowMap.empty(self.num_fields), counts)

    def extend_from_counts(self, *counts: IdCounts) -> None:
        """Gives rows to ids that have become frequent; all others keep what they have.

        Args:
            *counts: as of `adapt_from_counts`.

        Raises:
            ValueError: counts of another number of fields, or the layer was not adapted.
        """
        self._check_adapted()
        self._extend(IdRowMap(*(v.numpy() for v in self.state_variables)), counts)

    def _extend(self, known: IdRowMap, counts: Sequence[IdCounts]) -> None:
        merged = self.new_counts()
        merged.merge(*counts)
        limits = self.max_rows or [np.iinfo(np.int64).max] * self.num_fields
        found = known.extended(merged, self.min_count, limits)
        for variable, value in zip(self.state_variables, found, strict=True):
            variable.assign(value)

    def call(self, inputs: Any) -> Any:
        """Replaces ids by rows.

        Args:
            inputs: ids, an integer tensor [B, F]; with bags a list of it (if F is not 0) and, for
                each bag, a ragged tensor of ids [B, None].

        Returns:
            The same with rows, int64: -1 where the id is negative, 0 for ids without a row of their
            own.

        Raises:
            ValueError: inputs of another form, or the layer was not adapted.
        """
        matrix, bags = self._split(inputs)
        if tf.executing_eagerly():
            self._check_adapted()
        single = self.num_fields - self.num_bags
        with tf.control_dependencies(
            [tf.debugging.assert_positive(tf.size(self._sizes.read_value()), self._not_adapted)]
        ):
            keys = self._keys.read_value()
        rows = [] if matrix is None else [self._rows_of(matrix, np.arange(single), keys)]
        for i, bag in enumerate(bags):
            flat = self._rows_of(bag.flat_values, np.int64(single + i), keys)
            rows.append(bag.with_flat_values(flat))
        return rows if isinstance(inputs, (list, tuple)) else rows[0]

    def _rows_of(self, ids: Any, fields: Any, known: tf.Tensor) -> tf.Tensor:
        ids = tf.cast(ids, tf.int64)
        positions = ops.find_keys(known, id_keys(ids, fields, hash_keys))
        # The first key is that of no id, and its row the shared one.
        rows = tf.gather(self._rows.read_value(), tf.maximum(positions, 0))
        return tf.where(ids < 0, tf.constant(-1, tf.int64), rows)

    def _split(self, inputs: Any) -> tuple[Any, list[Any]]:
        """The matrix, if there is one, and the bags."""
        parts = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        single = self.num_fields - self.num_bags
        expected = (single > 0) + self.num_bags
        if len(parts) != expected:
            raise ValueError(f"inputs must be {expected} tensors, got {len(parts)}")
        matrix = None
        if single:
            matrix = as_declared(tf.convert_to_tensor(parts.pop(0)), tf.int64)
        parts = [
            tf.RaggedTensor.from_tensor(as_declared(bag, tf.int64))
            if is_of_symbolic_build(bag)
            else bag
            for bag in parts
        ]
        if matrix is not None and (
            matrix.shape.rank != 2 or matrix.shape[1] != single or not matrix.dtype.is_integer
        ):
            raise ValueError(
                f"ids must be integers [B, {single}], got {matrix.dtype.name} {matrix.shape}"
            )
        for bag in parts:
            if not isinstance(bag, tf.RaggedTensor) or not bag.dtype.is_integer:
                raise ValueError("a bag must be a ragged tensor of integers")
        matrix = None if matrix is None else as_ids(matrix)
        return matrix, [bag.with_flat_values(as_ids(bag.flat_values)) for bag in parts]

    @property
    def _not_adapted(self) -> str:
        return f"{type(self).__name__} '{self.name}' is not adapted: call adapt(data)"

    def _check_adapted(self) -> None:
        if not self.adapted:
            raise ValueError(self._not_adapted)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            **self._reference(),
            "min_count": self.min_count,
            "max_rows": self.max_rows,
            "num_bags": self.num_bags,
        }


def _limits(max_rows: int | Sequence[int], num_fields: int) -> list[int]:
    given = [max_rows] * num_fields if isinstance(max_rows, int) else [int(n) for n in max_rows]
    if len(given) != num_fields or min(given) < 0:
        raise ValueError(
            f"max_rows must be None, an integer of at least 0 or {num_fields} of them, got "
            f"{max_rows!r}"
        )
    return given
