"""Columns of raw data, as tensors of text and numbers, to the features that a model takes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops._category_hash import MISSING, VERSION, column_key
from twml_ops.data import LayoutName, Schema
from twml_ops.data.layouts import bag_name
from twml_ops.data.schema import SPARSE_IDS, SPARSE_VALUES
from twml_ops.layers import StringHash


class RawColumns:
    """The columns of a schema as tensors of a serving signature, in stock TensorFlow ops.

    Args:
        schema: the features of the model.
        layout: the layout of the features that the model takes.

    Raises:
        ValueError: the categories of the schema are hashed by version 1, which TensorFlow cannot
            compute.
    """

    def __init__(self, schema: Schema, layout: LayoutName) -> None:
        if schema.categorical and schema.hash_version != VERSION:
            raise ValueError(
                f"the categories of the schema must have hash_version {VERSION}, got "
                f"{schema.hash_version}: TensorFlow cannot hash them, train the model anew"
            )
        self._schema = schema
        self._layout = "ragged" if layout == "ragged" else "fields"  # row keys are for training

    def specs(self) -> dict[str, tf.TensorSpec]:
        """The tensors by column.

        A tensor is named as its column, with underscores for characters other than letters and
        digits, and more of them at the end where two columns would have the same name. A number is
        a float32 and a category a string, each [B]. A bag in the column `tags` is `tags` [K] and
        `tags_row_splits` int64 [B + 1], with the column of its weights [K] if it has any. Raw
        sparse features are `ids`, `values` and `ids_row_splits`.
        """
        schema = self._schema
        dtypes = dict.fromkeys(schema.continuous, tf.float32)
        dtypes |= dict.fromkeys(schema.categorical, tf.string)
        dtypes |= {f"{name}_row_splits": tf.int64 for name in schema.bags}
        dtypes |= dict.fromkeys(schema.bag_weights.values(), tf.float32)
        if schema.sparse_dim:
            dtypes |= {SPARSE_IDS: tf.int64, SPARSE_VALUES: tf.float32}
            dtypes[f"{SPARSE_IDS}_row_splits"] = tf.int64
        names: list[str] = []
        for column in dtypes:
            name = _tensor_name(column)
            while name in names:
                name += "_"
            names.append(name)
        return {
            column: tf.TensorSpec([None], dtype, name)
            for (column, dtype), name in zip(dtypes.items(), names, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """What a scorer has to know to make features of columns; see cc/core/scorer/raw_columns.h.

        It has the `layout`, the names of the columns with `numbers`, and for each column with
        `categories`, in the order of the schema, its `name`, the two integers of the `key` of its
        hash, whether it is a `bag`, and the column of its `weights` or None. `sparse` says whether
        there are raw sparse features.
        """
        schema = self._schema
        return {
            "layout": self._layout,
            "numbers": list(schema.continuous),
            "categories": [
                {
                    "name": name,
                    "key": list(column_key(name)),
                    "bag": name in schema.bags,
                    "weights": schema.bag_weights.get(name),
                }
                for name in schema.categorical
            ],
            "sparse": bool(schema.sparse_dim),
        }

    def feature_names(self) -> list[str]:
        """The names of the flat arrays that a scorer makes of the columns."""
        schema = self._schema
        groups: dict[str, tuple[str, ...]] = {}
        names: list[str] = []
        if schema.sparse_dim:
            groups["sparse"] = ("ids", "values")
        if self._layout == "ragged":
            groups |= {"continuous": ("ids", "values")} if schema.continuous else {}
            groups |= {"categorical": ("ids",)} if schema.categorical else {}
        else:
            for name in schema.bags:
                weighted = name in schema.bag_weights
                groups[bag_name(name)] = ("ids", "values") if weighted else ("ids",)
            names += ["continuous", "continuous_present"] if schema.continuous else []
            names += ["categorical"] if schema.fields else []
        for group, parts in groups.items():
            names += [f"{group}_{part}" for part in (*parts, "row_splits")]
        return names

    def parse(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """The tensors that `specs` describes, of serialized `tf.Example`s [B].

        A feature that an example does not have is a missing value.
        """
        schema = self._schema
        spec: dict[str, Any] = {
            name: tf.io.FixedLenFeature([], tf.float32, np.nan) for name in schema.continuous
        }
        spec |= {name: tf.io.FixedLenFeature([], tf.string, "") for name in schema.fields}
        for name in schema.bags:
            spec[name] = tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64)
            if name in schema.bag_weights:
                weights = schema.bag_weights[name]
                spec[weights] = tf.io.RaggedFeature(tf.float32, row_splits_dtype=tf.int64)
        if schema.sparse_dim:
            spec[SPARSE_IDS] = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
            spec[SPARSE_VALUES] = tf.io.RaggedFeature(tf.float32, row_splits_dtype=tf.int64)
        tensors: dict[str, tf.Tensor] = {}
        for name, value in tf.io.parse_example(examples, spec).items():
            if not isinstance(value, tf.RaggedTensor):
                tensors[name] = value
                continue
            tensors[name] = value.flat_values
            if name in schema.bags or name == SPARSE_IDS:
                tensors[f"{name}_row_splits"] = value.row_splits
        return tensors

    def by_column(self, tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Tensors by column, of tensors by the names that they have in a signature."""
        return {column: tensors[spec.name] for column, spec in self.specs().items()}

    def features(self, tensors: dict[str, tf.Tensor]) -> dict[str, Any]:
        """The features in the layout of the model, of the tensors that `specs` describes."""
        schema = self._schema
        features: dict[str, Any] = {}
        if schema.continuous:
            features.update(self._numbers(tensors))
        if schema.categorical:
            fields = self._layout == "fields"
            features.update(self._fields(tensors) if fields else self._rows(tensors))
        if schema.sparse_dim:
            splits = tensors[f"{SPARSE_IDS}_row_splits"]
            for part in (SPARSE_IDS, SPARSE_VALUES):
                rows = tf.RaggedTensor.from_row_splits(tensors[part], splits)
                features[f"sparse_{part}"] = rows
        return features

    def _numbers(self, tensors: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.stack([tensors[name] for name in self._schema.continuous], axis=1)
        present = tf.logical_not(tf.math.is_nan(table))
        if self._layout == "fields":
            return {
                "continuous": tf.where(present, table, 0.0),
                "continuous_present": present,
            }
        ids = tf.zeros_like(table, tf.int64) + tf.range(table.shape[1], dtype=tf.int64)
        return {
            "continuous_ids": tf.ragged.boolean_mask(ids, present),
            "continuous_values": tf.ragged.boolean_mask(table, present),
        }

    def _fields(self, tensors: dict[str, tf.Tensor]) -> dict[str, Any]:
        schema, features = self._schema, {}
        if schema.fields:
            features["categorical"] = StringHash(schema.fields)(
                {name: tensors[name] for name in schema.fields}
            )
        for name in schema.bags:
            ids = self._bag(name, tensors)
            there = ids.with_flat_values(ids.flat_values != MISSING)
            key = bag_name(name)
            features[f"{key}_ids"] = tf.ragged.boolean_mask(ids, there)
            if name in schema.bag_weights:
                weights = ids.with_flat_values(tensors[schema.bag_weights[name]])
                features[f"{key}_values"] = tf.ragged.boolean_mask(weights, there)
        return features

    def _rows(self, tensors: dict[str, tf.Tensor]) -> dict[str, Any]:
        """All categories that are present, in the order of the columns."""
        schema = self._schema
        columns = []
        for name in schema.categorical:
            if name in schema.bags:
                columns.append(self._bag(name, tensors))
            else:
                ids = StringHash([name])({name: tensors[name]})
                columns.append(tf.RaggedTensor.from_tensor(ids, row_splits_dtype=tf.int64))
        ids = tf.concat(columns, axis=1)
        there = ids.with_flat_values(ids.flat_values != MISSING)
        return {"categorical_ids": tf.ragged.boolean_mask(ids, there)}

    def _bag(self, name: str, tensors: dict[str, tf.Tensor]) -> tf.RaggedTensor:
        ids = StringHash([name])({name: tensors[name]})[:, 0]
        return tf.RaggedTensor.from_row_splits(ids, tensors[f"{name}_row_splits"])


def _tensor_name(column: str) -> str:
    """What the argument of a signature is called; TensorFlow has few characters for it."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", column)
    return name if name[:1].isalnum() else f"column{name}"
