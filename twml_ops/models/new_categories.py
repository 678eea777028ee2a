"""Rows for categories that a trained model on fields has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops import _keras, placement
from twml_ops.data import Schema
from twml_ops.layers import CategoryRows, FieldEmbedding
from twml_ops.models._adapt_fields import ids_by_field
from twml_ops.ops._tape import tf_variable

_SHARED_ROW = 1  # of a field's part of a table; row 0 is that of missing values


class EnlargedTable(NamedTuple):
    """A table of a `FieldEmbedding` before and after `with_new_categories` added rows to it.

    Attributes:
        before: the variable of the trained model, of TensorFlow.
        after: the variable of the enlarged model.
        rows: int64 [rows of `before`], where they are in `after`.
    """

    before: Any
    after: Any
    rows: np.ndarray


class EnlargedModel(NamedTuple):
    """A model with rows for new categories.

    Attributes:
        model: the model, uncompiled.
        new_rows: number of categories of each field that got a row; empty if the model has no
            `CategoryRows`.
    """

    model: tf.keras.Model
    new_rows: list[int]


def with_new_categories(
    model: tf.keras.Model, schema: Schema, dataset: tf.data.Dataset
) -> EnlargedModel:
    """Gives rows to categories that are frequent in new data and have none yet.

    Ids and rows of known categories stay, and so do all weights. A new category begins with the
    vector of the shared row, which it had until now, so the outputs of the model do not change.
    What other layers know of the categories (`TargetStatistics`, `CountStatistics`, boosted trees)
    stays as it is.

    Args:
        model: a model of `twml_ops.models` on fields, or one with a single `CategoryRows` layer
            whose rows `FieldEmbedding` layers take, its fields first and its bags last. It is not
            changed.
        schema: the features of the model.
        dataset: batches in the layout "fields" or "keyed_fields", read once.

    Returns:
        The enlarged model; `model` itself if it has no `CategoryRows` or there is nothing new.

    Raises:
        ValueError: the model has several `CategoryRows`, or an embedding takes other rows.
    """
    layers = _keras.all_layers(model)
    known = [layer for layer in layers if isinstance(layer, CategoryRows)]
    if not known:
        return EnlargedModel(model, [])
    if len(known) > 1:
        raise ValueError(f"model must have one CategoryRows layer, got {len(known)}")
    categories: CategoryRows = type(known[0]).from_config(known[0].get_config())
    counts = categories.new_counts()
    for features, *_ in dataset:
        for field, ids in enumerate(ids_by_field(schema, features)):
            counts.update(field, ids)
    categories.extend_from_counts(counts)
    old, new = known[0].num_rows, categories.num_rows
    if old == new:
        return EnlargedModel(model, [0] * len(old))
    single = categories.num_fields - categories.num_bags
    for layer in layers:
        if isinstance(layer, FieldEmbedding):
            _check_takes(layer, known[0], single)

    def cloned(layer: Any) -> Any:
        if layer is known[0]:
            return categories
        config = layer.get_config()
        if isinstance(layer, FieldEmbedding):
            config["num_rows"] = _enlarged(layer.num_rows, new, single)
        return type(layer).from_config(config)

    enlarged = _keras.clone_model(model, cloned)
    for before, after in zip(layers, _keras.all_layers(enlarged), strict=True):
        if isinstance(before, FieldEmbedding):
            _copy_rows(before, after)
        elif not isinstance(before, CategoryRows):
            placement.copy_weights(before.weights, after.weights)
    return EnlargedModel(enlarged, [n - o for o, n in zip(old, new, strict=True)])


def enlarged_tables(before: tf.keras.Model, after: tf.keras.Model) -> list[EnlargedTable]:
    """Maps the rows of a model to the rows of the model that `with_new_categories` returned for it.

    Args:
        before: the trained model.
        after: the enlarged one, or another one with the same layers.

    Returns:
        One entry for each table of a `FieldEmbedding`.
    """
    pairs = zip(_keras.all_layers(before), _keras.all_layers(after), strict=True)
    return [
        EnlargedTable(
            tf_variable(old.variable),
            tf_variable(new.variable),
            _rows_in(old.ranges, new.ranges),
        )
        for a, b in pairs
        if isinstance(a, FieldEmbedding)
        for old, new in zip(a.tables, b.tables, strict=True)
    ]


def _check_takes(layer: FieldEmbedding, categories: CategoryRows, single: int) -> None:
    rows, bags = categories.num_rows, categories.num_bags
    tail = layer.num_rows[len(layer.num_rows) - bags :]
    if layer.num_rows[:single] != rows[:single] or layer.num_bags != bags or tail != rows[single:]:
        raise ValueError(
            f"the layer {layer.name!r} must take the rows of {categories.name!r}, {rows}, its "
            f"fields first and its bags last, got num_rows = {layer.num_rows}"
        )


def _enlarged(num_rows: Sequence[int], categories: Sequence[int], single: int) -> list[int]:
    """The rows of the fields of an embedding, with the rows of the categories replaced."""
    bags = len(categories) - single
    return [*categories[:single], *num_rows[single : len(num_rows) - bags], *categories[single:]]


def _rows_in(old: Sequence[tuple[int, int]], new: Sequence[tuple[int, int]]) -> np.ndarray:
    starts = zip(old, new, strict=True)
    return np.concatenate([first + np.arange(stop - start) for (start, stop), (first, _) in starts])


def _copy_rows(before: FieldEmbedding, after: FieldEmbedding) -> None:
    for old, new in zip(before.tables, after.tables, strict=True):
        values = np.array(placement.placement_of(old.variable).read(old.variable))
        wide = np.empty((new.num_rows, old.units), values.dtype)
        for (start, _), (first, stop) in zip(old.ranges, new.ranges, strict=True):
            wide[first:stop] = values[start + _SHARED_ROW]
        wide[_rows_in(old.ranges, new.ranges)] = values
        placement.placement_of(new.variable).assign(new.variable, wide)
        if old.projection is not None:
            tf_variable(new.projection).assign(tf_variable(old.projection))
