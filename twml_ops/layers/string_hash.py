"""Maps categories as strings to the ids that readers give them, with stock TensorFlow ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops._category_hash import MISSING, NUM_BUCKETS, column_key
from twml_ops._keras import as_declared, is_of_symbolic_build, serializable


@serializable
class StringHash(tf.keras.layers.Layer):
    """Hashes categories to int64 ids: the same ids that `data.open_source` gives them.

    Put it in front of a trained model to serve raw strings. It is made of stock TensorFlow ops
    (`tf.strings.to_hash_bucket_strong`, SipHash-2-4 of Aumasson and Bernstein 2012 with a key
    for each column), so the exported model loads everywhere. Integers and bools are hashed as
    their decimal text and as "true" or "false".

    Args:
        columns: names of the columns, in the order of the output. A name is part of the hash.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: `columns` is empty or has a name twice; when called, an input that lacks a
            column or has values that are not strings, integers or bools.
    """

    def __init__(self, columns: Sequence[str], **kwargs: Any) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "int64")
        super().__init__(**kwargs)
        self.columns = [columns] if isinstance(columns, str) else [str(c) for c in columns]
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns must be one or more different names, got {columns!r}")
        self.supports_jit = False  # XLA has no strings

    def call(self, inputs: Any) -> Any:
        """Hashes one batch.

        Args:
            inputs: strings, integers or bools: a mapping from each column to a tensor [B] or
                [B, 1]; or one tensor [B, F] with the columns in order; or, for a single column,
                a `tf.RaggedTensor` [B, None] of any number of categories a row. A mapping may
                have other entries, which are ignored.

        Returns:
            int64 ids [B, F] in [0, 2^62), and -1 for an empty string, which is a missing value;
            for a ragged input a ragged tensor without the empty strings.
        """
        if isinstance(inputs, tf.RaggedTensor):
            return self._ragged(inputs)
        if is_of_symbolic_build(inputs) and inputs.shape[1:].as_list() == [None]:
            return self._ragged(tf.RaggedTensor.from_tensor(as_declared(inputs, tf.string)))
        return tf.stack(
            [
                _hashed(values, name)
                for values, name in zip(self._split(inputs), self.columns, strict=True)
            ],
            axis=1,
        )

    def _ragged(self, inputs: tf.RaggedTensor) -> tf.RaggedTensor:
        if len(self.columns) != 1:
            raise ValueError(
                f"a ragged input must belong to one column, got {len(self.columns)} columns"
            )
        ids = inputs.with_flat_values(_hashed(inputs.flat_values, self.columns[0]))
        return tf.ragged.boolean_mask(ids, ids.with_flat_values(ids.flat_values != MISSING))

    def _split(self, inputs: Any) -> list[Any]:
        """The values [B] of each column."""
        if not isinstance(inputs, Mapping):
            if inputs.shape.rank != 2 or inputs.shape[1] != len(self.columns):
                raise ValueError(
                    f"inputs must be a mapping, or a tensor [B, {len(self.columns)}], got the "
                    f"shape {inputs.shape}"
                )
            return tf.unstack(inputs, axis=1)
        missing = [name for name in self.columns if name not in inputs]
        if missing:
            raise ValueError(f"inputs lack the columns {missing}, got {sorted(inputs)}")
        return [tf.reshape(inputs[name], [-1]) for name in self.columns]

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int | None]:
        """[B, F]."""
        shape = next(iter(input_shape.values())) if isinstance(input_shape, Mapping) else None
        return ((shape or input_shape)[0], len(self.columns))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {**config, "columns": list(self.columns)}


def _hashed(values: Any, column: str) -> tf.Tensor:
    """The ids [K] of the categories [K] of a column."""
    values = as_declared(values, tf.string)
    if values.dtype.is_integer or values.dtype.is_bool:
        values = tf.strings.as_string(values)
    if values.dtype != tf.string:
        raise ValueError(
            f"column {column!r} must hold strings, integers or bools, got {values.dtype.name}"
        )
    ids = tf.strings.to_hash_bucket_strong(values, NUM_BUCKETS, list(column_key(column)))
    return tf.where(tf.equal(values, ""), tf.constant(MISSING, tf.int64), ids)
