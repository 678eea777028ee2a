"""Numbers the frequent categories of each field; rare ones share a number."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._arguments import check_positive_integer
from twml_ops.layers._category_frequencies import CategoryFrequencies
from twml_ops.layers._resizable_state import ResizableState
from twml_ops.layers._state_reference import StateReference


@serializable
class FrequentCategories(ResizableState, tf.keras.layers.Layer):
    """Replaces ids of categories by numbers for a table: 1, 2, … for frequent ones, 0 for others.

    `adapt` counts the categories of each field. Those that occur at least `min_count` times have
    numbers of their own, in ascending order of their ids. All others share 0, also those that the
    data do not contain. -1, a missing value, stays. The result is what `FieldEmbedding` takes. Its
    tables then have no more rows than they need, and whose row for rare categories is trained.

    The ids of a category must be positive and differ between fields, as the hashes of the readers
    do. The state survives `.keras` files, checkpoints and SavedModels. Memory: 16 bytes for each
    frequent category.

    Args:
        num_fields: number of fields, F.
        min_count: smallest number of occurrences of a frequent category, default 2.
        max_rows: largest number of rows of a field in a table, default 2^18. Of more categories
            the most frequent ones are kept.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument is out of its range.
    """

    state_names: ClassVar[tuple[str, ...]] = ("ids", "numbers", "sizes")

    def __init__(
        self, num_fields: int, min_count: int = 2, max_rows: int = 1 << 18, **kwargs: Any
    ) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "int64")
        super().__init__(**kwargs)
        self.num_fields = check_positive_integer("num_fields", num_fields)
        self.min_count = check_positive_integer("min_count", min_count)
        self.max_rows = check_positive_integer("max_rows", max_rows)
        if self.max_rows < 2:
            raise ValueError(f"max_rows must be at least 2, got {max_rows}")
        self.supports_jit = False  # XLA has no tensors of varying size
        with tf.init_scope(), tf.device("CPU:0"):
            for name in self.state_names:
                empty = tf.zeros([0], tf.int64)
                variable = tf.Variable(empty, trainable=False, shape=[None], name=name)
                setattr(self, f"_{name}", variable)  # checkpoints of Keras 3 ignore lists

    @property
    def adapted(self) -> bool:
        """Whether there is a state: from `adapt`, or loaded."""
        return int(tf.size(self._sizes.read_value())) > 0

    @property
    def num_rows(self) -> list[int]:
        """The rows that each field needs in a `FieldEmbedding`: missing, rare, and the frequent."""
        return [int(n) + 2 for n in self._sizes.numpy()]

    def new_counts(self) -> CategoryFrequencies:
        """Empty counts, for `adapt_from_counts`.

        Returns:
            The counts.
        """
        return CategoryFrequencies(self.num_fields)

    def adapt(self, data: Any) -> None:
        """Counts the categories in one pass over the data; an earlier state is dropped.

        Args:
            data: iterable, such as a `tf.data.Dataset`, of int64 ids [B, F]; for one field also
                ragged ones.

        Raises:
            ValueError: the elements have another shape.
        """
        counts = self.new_counts()
        for ids in data:
            if isinstance(ids, tf.RaggedTensor) and self.num_fields == 1:
                counts.update(0, ids.flat_values.numpy())
                continue
            columns = np.asarray(ids)
            if columns.ndim != 2 or columns.shape[1] != self.num_fields:
                raise ValueError(f"data must be ids [B, {self.num_fields}], got {columns.shape}")
            for field, column in enumerate(columns.T):
                counts.update(field, column)
        self.adapt_from_counts(counts)

    def adapt_from_counts(self, counts: CategoryFrequencies) -> None:
        """Takes the frequent categories of counts.

        Args:
            counts: made by `new_counts`; those of several processes can be merged.
        """
        kept = [
            counts.frequent(field, self.min_count, self.max_rows - 2)
            for field in range(self.num_fields)
        ]
        ids = np.concatenate(kept)
        numbers = np.concatenate([1 + np.arange(len(part)) for part in kept])
        order = np.argsort(ids, kind="stable")
        self._ids.assign(ids[order])
        self._numbers.assign(numbers[order])
        self._sizes.assign([len(part) for part in kept])

    def call(self, inputs: Any) -> Any:
        """Numbers the categories of one batch.

        Args:
            inputs: int64 ids [B, F], or for one field a `tf.RaggedTensor` of them.

        Returns:
            int64 numbers in the same form.

        Raises:
            ValueError: another shape, or the layer was not adapted.
        """
        ragged = isinstance(inputs, tf.RaggedTensor)
        if (self.num_fields != 1) if ragged else inputs.shape[1:] != [self.num_fields]:
            raise ValueError(f"inputs must be ids [B, {self.num_fields}], got {inputs.shape}")
        if tf.executing_eagerly() and not self.adapted:
            raise ValueError(f"FrequentCategories '{self.name}' is not adapted: call adapt(data)")
        return inputs.with_flat_values(self._of(inputs.flat_values)) if ragged else self._of(inputs)

    def _of(self, ids: Any) -> tf.Tensor:
        # One id and one number more, so that there is a row for ids above all others.
        known = tf.concat([self._ids.read_value(), [-1]], axis=0)
        numbers = tf.concat([self._numbers.read_value(), [0]], axis=0)
        flat = tf.reshape(tf.cast(ids, tf.int64), [-1])
        rows = tf.searchsorted(known[:-1], flat, out_type=tf.int64)
        found = tf.where(tf.gather(known, rows) == flat, tf.gather(numbers, rows), 0)
        return tf.reshape(tf.where(flat < 0, tf.constant(-1, tf.int64), found), tf.shape(ids))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        fields: int = self.num_fields
        if tf.executing_eagerly() and self.adapted:
            fields = StateReference(fields, self)
        return {
            **config,
            "num_fields": fields,
            "min_count": self.min_count,
            "max_rows": self.max_rows,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FrequentCategories:
        """A layer as `get_config` described it.

        Within the process it has the state of the layer whose config this is, so clones of a model
        are adapted too. From a file the state comes with the weights.

        Args:
            config: what `get_config` returned.
        """
        fields = config["num_fields"]
        layer = cls(**{**config, "num_fields": int(fields)})
        if isinstance(fields, StateReference):
            for mine, other in zip(
                layer.state_variables, fields.layer.state_variables, strict=True
            ):
                mine.assign(other.read_value())
        return layer
