"""Turns the features of a block into tensors: ragged groups, or a matrix with a column a field."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from twml_ops.data.block import Array, Block, Categories, Group, Numbers, Rows
from twml_ops.data.errors import DataError
from twml_ops.data.row_keys import ROW_KEYS
from twml_ops.data.schema import Schema

if TYPE_CHECKING:
    import tensorflow as tf

LayoutName = Literal["ragged", "fields", "keyed_fields", "row_keys"]
"""The form of a batch of features; see `Source.dataset`."""
Arrays = dict[str, tuple[Array, ...]]


class Layout(ABC):
    """The arrays as which TensorFlow gets a block, and the tensors that a graph makes of them.

    Attributes:
        labels: names of the labels.
        weighted: whether there are sample weights.
    """

    def __init__(self, labels: tuple[str, ...] = ("label",), weighted: bool = False) -> None:
        self.labels = labels
        self.weighted = weighted

    def arrays(self, block: Block) -> Any:
        """The block's NumPy arrays, of the structure of `signature`, as copies.

        Ops may write their results into the memory of arrays that a generator has yielded, as those
        of TensorFlow 2.15 do with row splits, and a block may be read again.
        """
        weights = (_copy(block.columns["weight"]),) if self.weighted else ()
        features = {name: tuple(map(_copy, x)) for name, x in self._features(block).items()}
        return _copy(block.labels), features, weights

    def signature(self, batch_size: int | None) -> Any:
        """The tensors' types; `batch_size` if all batches have it."""
        import tensorflow as tf

        shape = [batch_size, len(self.labels)] if len(self.labels) > 1 else [batch_size]
        weights = (tf.TensorSpec([batch_size], tf.float32),) if self.weighted else ()
        return tf.TensorSpec(shape, tf.float32), self._signature(batch_size), weights

    def finish(self, labels: Any, parts: Mapping[str, Any], weights: Any) -> Any:
        """`(features, labels)` or `(features, labels, sample weights)` of the tensors."""
        import tensorflow as tf

        if len(self.labels) > 1:
            columns = tf.split(labels, len(self.labels), axis=1)
            return self._finish(parts), dict(zip(self.labels, columns, strict=True)), *weights
        return self._finish(parts), labels[:, tf.newaxis], *weights

    @abstractmethod
    def _features(self, block: Block) -> Arrays: ...

    @abstractmethod
    def _signature(self, batch_size: int | None) -> dict[str, Any]: ...

    @abstractmethod
    def _finish(self, parts: Mapping[str, Any]) -> dict[str, Any]: ...


class Ragged(Layout):
    """Groups as ragged ids and values: only what is present.

    Args:
        groups: name of a feature group → whether its entries have values.
        labels: as of `Layout`.
        weighted: as of `Layout`.
    """

    def __init__(
        self,
        groups: Mapping[str, bool],
        labels: tuple[str, ...] = ("label",),
        weighted: bool = False,
    ) -> None:
        super().__init__(labels, weighted)
        self._groups = dict(groups)

    def _features(self, block: Block) -> Arrays:
        return {name: _rows_arrays(block.groups[name]) for name in self._groups}

    def _signature(self, batch_size: int | None) -> dict[str, Any]:
        return {name: _rows_spec(batch_size, valued) for name, valued in self._groups.items()}

    def _finish(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for name, arrays in parts.items():
            features.update(_ragged(name, arrays))
        return features


class Fields(Layout):
    """Numbers and categories as matrices [B, C] and [B, F]; bags and raw sparse ids as ragged.

    Args:
        schema: the features, labels and weights.
        keyed: whether there is a key for each row.
    """

    def __init__(self, schema: Schema, keyed: bool = False) -> None:
        super().__init__(schema.labels, schema.weight is not None)
        self._schema, self._keyed = schema, keyed

    def _features(self, block: Block) -> Arrays:
        schema = self._schema
        arrays: Arrays = {ROW_KEYS: (block.columns[ROW_KEYS],)} if self._keyed else {}
        if schema.continuous:
            numbers = block.groups["continuous"]
            assert isinstance(numbers, Numbers)
            present = ~np.isnan(numbers.table)
            arrays["continuous"] = (np.where(present, numbers.table, np.float32(0)), present)
        if schema.categorical:
            categories = block.groups["categorical"]
            assert isinstance(categories, Categories)
            if categories.table.shape[1] != len(schema.fields):
                raise DataError(
                    f"the data hold {categories.table.shape[1]} columns of one category, the "
                    f"schema names {len(schema.fields)}"
                )
            if schema.fields:
                arrays["categorical"] = (categories.table,)
            for name in schema.bags:
                rows = categories.bags[schema.categorical.index(name)]
                arrays[schema.bag_arrays(name)] = _rows_arrays(rows)
        if schema.sparse_dim:
            arrays["sparse"] = _rows_arrays(block.groups["sparse"])
        return arrays

    def _signature(self, batch_size: int | None) -> dict[str, Any]:
        import tensorflow as tf

        schema = self._schema
        spec: dict[str, Any] = {}
        if self._keyed:
            spec[ROW_KEYS] = (tf.TensorSpec([batch_size], tf.int64),)
        if schema.continuous:
            shape = [batch_size, len(schema.continuous)]
            spec["continuous"] = (tf.TensorSpec(shape, tf.float32), tf.TensorSpec(shape, tf.bool))
        if schema.fields:
            spec["categorical"] = (tf.TensorSpec([batch_size, len(schema.fields)], tf.int64),)
        for name in schema.bags:
            spec[schema.bag_arrays(name)] = _rows_spec(batch_size, name in schema.bag_weights)
        if schema.sparse_dim:
            spec["sparse"] = _rows_spec(batch_size, True)
        return spec

    def _finish(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        features: dict[str, Any] = {}
        for name, arrays in parts.items():
            if name == "continuous":
                features["continuous"], features["continuous_present"] = arrays
            elif name in ("categorical", ROW_KEYS):
                (features[name],) = arrays
            else:
                features.update(_ragged(name, arrays))
        return features


class RowKeys(Layout):
    """The key of each row, for features that were computed before."""

    def _features(self, block: Block) -> Arrays:
        return {ROW_KEYS: (block.columns[ROW_KEYS],)}

    def _signature(self, batch_size: int | None) -> dict[str, Any]:
        import tensorflow as tf

        return {ROW_KEYS: (tf.TensorSpec([batch_size], tf.int64),)}

    def _finish(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        return {ROW_KEYS: parts[ROW_KEYS][0]}


def named_layout(schema: Schema, name: LayoutName) -> Layout:
    """The layout called `name`.

    Raises:
        ValueError: there is no such layout.
    """
    if name == "ragged":
        return Ragged(schema.groups, schema.labels, schema.weight is not None)
    if name in ("fields", "keyed_fields"):
        return Fields(schema, keyed=name == "keyed_fields")
    if name == "row_keys":
        return RowKeys(schema.labels, schema.weight is not None)
    raise ValueError(
        f'layout must be "ragged", "fields", "keyed_fields" or "row_keys", got {name!r}'
    )


def _copy(array: Array) -> Array:
    return np.array(array, order="C")


def _rows_arrays(rows: Group) -> tuple[Array, ...]:
    rows = rows if isinstance(rows, Rows) else rows.rows
    arrays = (rows.row_splits, rows.ids)
    return arrays if rows.values is None else (*arrays, rows.values)


def _rows_spec(batch_size: int | None, has_values: bool) -> tuple[Any, ...]:
    import tensorflow as tf

    splits = tf.TensorSpec([None if batch_size is None else batch_size + 1], tf.int64)
    ids, values = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.float32)
    return (splits, ids, values) if has_values else (splits, ids)


def _ragged(name: str, arrays: tuple[Any, ...]) -> dict[str, tf.RaggedTensor]:
    import tensorflow as tf

    splits, *flat = arrays
    return {
        f"{name}_{part}": tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        for part, values in zip(("ids", "values"), flat, strict=False)
    }
