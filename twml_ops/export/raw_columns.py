"""Columns of raw data, as tensors of text and numbers, to the features that a model takes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops._arrow_columns import SEPARATOR
from twml_ops._category_hash import MISSING, NULLS, column_key
from twml_ops.data import LayoutName, Schema
from twml_ops.data.schema import SPARSE_IDS, SPARSE_VALUES
from twml_ops.export.example_lists import ExampleLists, at_most_one, same_lengths
from twml_ops.export.time_columns import time_categories
from twml_ops.layers import StringHash

_BLANK = r"[ \t\n\v\f\r]*"
_SPELLINGS = (
    (f"^{_BLANK}(?:{'|'.join(map(re.escape, NULLS))})?{_BLANK}$", ""),
    (f"^{_BLANK}(?:True|TRUE|true){_BLANK}$", "true"),
    (f"^{_BLANK}(?:False|FALSE|false){_BLANK}$", "false"),
    (rf"^{_BLANK}(?:\+|(-))?(0|[1-9][0-9]*)(?:\.0*)?{_BLANK}$", r"\1\2"),
    ("^-0$", "0"),
)  # of integers and bools, in the order in which they are replaced


class RawColumns:
    """The columns of a schema as tensors of a serving signature, in stock TensorFlow ops.

    Args:
        schema: the features of the model.
        layout: the layout of the features that the model takes.
    """

    def __init__(self, schema: Schema, layout: LayoutName) -> None:
        self._schema = schema
        self._layout = "ragged" if layout == "ragged" else "fields"  # row keys are for training

    def specs(self) -> dict[str, tf.TensorSpec]:
        """The tensors by column.

        A tensor is named as its column, with underscores for characters other than letters and
        digits, and more of them at the end where two columns would have the same name. A number is
        a float32, a category a string, and so is a time of which features are made, each [B]. A bag
        in the column `tags` is `tags` [K] and `tags_row_splits` int64 [B + 1], with the column of
        its weights [K] if it has any. Raw sparse features are `ids`, `values` and `ids_row_splits`.
        """
        schema = self._schema
        dtypes = dict.fromkeys(schema.continuous, tf.float32)
        dtypes |= dict.fromkeys(schema.categorical_columns, tf.string)
        dtypes |= dict.fromkeys(schema.times, tf.string)
        dtypes |= {f"{name}_row_splits": tf.int64 for name in schema.bags}
        dtypes |= dict.fromkeys(schema.bag_weights.values(), tf.float32)
        if schema.sparse_dim:
            dtypes |= {SPARSE_IDS: tf.int64, SPARSE_VALUES: tf.float32}
            dtypes[f"{SPARSE_IDS}_row_splits"] = tf.int64
        names: list[str] = []
        for column in dtypes:
            name = _tensor_name(column)
            while name.lower() in {known.lower() for known in names}:  # as TensorFlow takes them
                name += "_"
            names.append(name)
        return {
            column: tf.TensorSpec([None], dtype, name)
            for (column, dtype), name in zip(dtypes.items(), names, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """The description of the columns from which a scorer makes features; see
        cc/core/scorer/raw_columns.h.

        It has the `layout`, the names of the columns with `numbers`, and for each column with
        `categories`, in the order of the schema, its `name`, the two integers of the `key` of its
        hash, whether it is a `bag`, the column of its `weights` or None, and whether it is `typed`.
        A feature of a time has a `time` as well: its `column`, `part` and `unit`. A bag has
        `arrays`, the prefix of the names of its features, and the
        `separator` of its categories where they are one text, which only
        `twml_ops.core.Scorer.predict` of a data frame uses: requests have lists.
        `sparse` says whether there are raw sparse features.
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
                    "typed": schema.is_typed(name),
                    **self._time(name),
                    **self._bag_facts(name),
                }
                for name in schema.categorical
            ],
            "sparse": bool(schema.sparse_dim),
        }

    def _bag_facts(self, name: str) -> dict[str, Any]:
        """What the description of a bag has beside; nothing of other features."""
        if name not in self._schema.bags:
            return {}
        separator = self._schema.separators.get(name, SEPARATOR)
        return {"arrays": self._schema.bag_arrays(name), "separator": separator}

    def _time(self, name: str) -> dict[str, Any]:
        """The description of a feature of a time; nothing of other features."""
        made = self._schema.time_feature(name)
        if made is None:
            return {}
        column, part = made
        return {"time": {"column": column, "part": part, "unit": self._schema.times[column]}}

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
                groups[schema.bag_arrays(name)] = ("ids", "values") if weighted else ("ids",)
            names += ["continuous", "continuous_present"] if schema.continuous else []
            names += ["categorical"] if schema.fields else []
        for group, parts in groups.items():
            names += [f"{group}_{part}" for part in (*parts, "row_splits")]
        return names

    def parse(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """The tensors that `specs` describes, of serialized `tf.Example`s [B].

        A feature that an example does not have, or whose list is empty, is a missing value. Numbers
        may be lists of integers or floats, and categories lists of bytes or integers.
        """
        schema, lists = self._schema, ExampleLists(examples)
        tensors: dict[str, tf.Tensor] = {}
        for name in schema.continuous:
            tensors[name] = at_most_one(lists.numbers(name), name, np.nan)
        for name in (*(n for n in schema.categorical_columns if n in schema.fields), *schema.times):
            tensors[name] = at_most_one(lists.texts(name), name, "")
        for name in schema.bags:
            tokens = lists.texts(name)
            tensors[name], tensors[f"{name}_row_splits"] = tokens.flat_values, tokens.row_splits
            if name in schema.bag_weights:
                weights = schema.bag_weights[name]
                tensors[weights] = same_lengths(lists.numbers(weights), tokens, weights)
        if schema.sparse_dim:
            ids, values = lists.integers(SPARSE_IDS), lists.numbers(SPARSE_VALUES)
            # Without values they are 1, as where the data is read.
            ones = ids.with_flat_values(tf.ones_like(ids.flat_values, tf.float32))
            bare = tf.repeat(tf.equal(values.row_lengths(), 0), ids.row_lengths())
            ones = tf.ragged.boolean_mask(ones, ids.with_flat_values(bare))
            tensors[SPARSE_IDS] = ids.flat_values
            values = tf.concat([values, ones], axis=1)
            tensors[SPARSE_VALUES] = same_lengths(values, ids, SPARSE_VALUES)
            tensors[f"{SPARSE_IDS}_row_splits"] = ids.row_splits
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
        tensors = tensors | self._times(tensors)
        if schema.categorical:
            fields = self._layout == "fields"
            features.update(self._fields(tensors) if fields else self._rows(tensors))
        if schema.sparse_dim:
            splits = tensors[f"{SPARSE_IDS}_row_splits"]
            for part in (SPARSE_IDS, SPARSE_VALUES):
                rows = tf.RaggedTensor.from_row_splits(tensors[part], splits)
                features[f"sparse_{part}"] = rows
        return features

    def _times(self, tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The categories of the features of times, by their names."""
        found: dict[str, tf.Tensor] = {}
        for column, unit in self._schema.times.items():
            made = (self._schema.time_feature(name) for name in self._schema.fields)
            parts = [part for of, part in filter(None, made) if of == column]
            texts = time_categories(column, tensors[column], unit, parts)
            found |= {f"{column}.{part}": text for part, text in texts.items()}
        return found

    def _numbers(self, tensors: dict[str, tf.Tensor]) -> dict[str, Any]:
        table = tf.stack([tensors[name] for name in self._schema.continuous], axis=1)
        table = _not_infinite(table, "numbers must not be infinite")
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
                {name: self._spelled(name, tensors) for name in schema.fields}
            )
        for name in schema.bags:
            ids = self._bag(name, tensors)
            there = ids.with_flat_values(ids.flat_values != MISSING)
            key = schema.bag_arrays(name)
            features[f"{key}_ids"] = tf.ragged.boolean_mask(ids, there)
            if name in schema.bag_weights:
                weights = tensors[schema.bag_weights[name]]
                weights = _not_infinite(weights, "weights must not be infinite")
                weights = ids.with_flat_values(weights)
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
                ids = StringHash([name])({name: self._spelled(name, tensors)})
                columns.append(tf.RaggedTensor.from_tensor(ids, row_splits_dtype=tf.int64))
        ids = tf.concat(columns, axis=1)
        there = ids.with_flat_values(ids.flat_values != MISSING)
        return {"categorical_ids": tf.ragged.boolean_mask(ids, there)}

    def _bag(self, name: str, tensors: dict[str, tf.Tensor]) -> tf.RaggedTensor:
        ids = StringHash([name])({name: self._spelled(name, tensors)})[:, 0]
        return tf.RaggedTensor.from_row_splits(ids, tensors[f"{name}_row_splits"])

    def _spelled(self, name: str, tensors: dict[str, tf.Tensor]) -> tf.Tensor:
        """The categories of a column as they are hashed, see cc/core/category_text.h."""
        texts = tensors[name]
        if not self._schema.is_typed(name):
            return texts
        for pattern, spelling in _SPELLINGS:
            texts = tf.strings.regex_replace(texts, pattern, spelling)
        return texts


def _not_infinite(numbers: tf.Tensor, message: str) -> tf.Tensor:
    """The numbers, if they are such as the readers of training data accept."""
    finite = tf.logical_not(tf.reduce_any(tf.math.is_inf(numbers)))
    with tf.control_dependencies([tf.debugging.Assert(finite, [message])]):
        return tf.identity(numbers)


def _tensor_name(column: str) -> str:
    """The name of a signature's argument, in the characters that TensorFlow allows."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", column)
    return name if name[:1].isalnum() else f"column{name}"
