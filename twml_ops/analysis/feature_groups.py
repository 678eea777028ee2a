"""Which entries of a batch belong to which feature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.data import Schema, Source
from twml_ops.data.block import Block, Categories
from twml_ops.data.layouts import LayoutName, named_layout

Array = npt.NDArray[Any]
Features = dict[str, Any]  # name → tf.RaggedTensor, or tf.Tensor in the layout "fields"
MAX_SPARSE = 40


class Masks(Mapping[str, Array]):
    """Name of a feature → bool [K]: which entries of its group are of the feature.

    A mask is made when it is asked for. All of them together would have K times as many bytes as
    there are features, a square of the number of columns.

    Args:
        owners: [K], the number of the feature of each entry.
        numbers: name of a feature → its number.
    """

    def __init__(self, owners: Array, numbers: Mapping[str, int]) -> None:
        self._owners, self._numbers = owners, numbers

    def __getitem__(self, name: str) -> Array:
        mask: Array = self._owners == self._numbers[name]
        return mask

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class FeatureGroup(NamedTuple):
    """The features of one group, and which entries of a batch belong to each.

    Attributes:
        name: "continuous", "categorical" or "sparse".
        keys: keys of the batch that hold the entries of the group: ragged tensors that share their
            row splits, or matrices of one shape.
        masks: name of a feature → bool [K] over the K entries of the group, row by row.
    """

    name: str
    keys: tuple[str, ...]
    masks: Masks


class Sample(NamedTuple):
    """Examples of a data set as one batch.

    Attributes:
        features: the batch.
        labels: float32 [R], of several labels [R, number of labels].
        category_columns: int64 [K], the position in `Schema.categorical` of each entry of
            `categorical_ids`; a batch of the layout "ragged" does not have it.
    """

    features: Features
    labels: Array
    category_columns: Array


def take_sample(
    source: Source, rows: int, layout: LayoutName = "ragged", seed: int | None = None
) -> Sample | None:
    """Takes the first examples of a data set as one batch.

    Args:
        source: the data set. Its sample weights are not used.
        rows: number of examples to take at most.
        layout: the layout of the batch; see `Source.dataset`.
        seed: the seed of the order of the examples; None: in the order of the files.

    Returns:
        The sample; None if there are no examples.
    """
    block = source.sample(rows, seed)
    return None if block is None else sample_of_block(block, source.schema, layout)


def sample_of_block(block: Block, schema: Schema, layout: LayoutName = "ragged") -> Sample:
    """Makes a sample of parsed examples.

    Args:
        block: the examples.
        schema: the features and labels.
        layout: the layout of the batch; see `Source.dataset`.

    Returns:
        All examples of the block.
    """
    form = named_layout(schema, layout)
    features, *_ = form.finish(*tf.nest.map_structure(tf.constant, form.arrays(block)))
    categories = block.groups.get("categorical")
    columns = categories.columns if isinstance(categories, Categories) else np.zeros(0, np.int64)
    return Sample(features, block.labels, columns)


def feature_groups(
    features: Features, schema: Schema, category_columns: Array | None = None
) -> list[FeatureGroup]:
    """Finds the entries of each feature in a batch.

    Sparse ids have no names: the `MAX_SPARSE` most frequent ids of the batch are features with the
    names `id 7`, …

    Args:
        features: a batch.
        schema: names of the continuous and categorical features.
        category_columns: int64 [K], the column of each entry of `categorical_ids`; see `Sample`.

    Returns:
        One group for each kind of features in the schema.

    Raises:
        ValueError: the batch has `categorical_ids` and their columns are not given.
    """
    groups = _matrices(features, schema)
    if "continuous_ids" in features:
        ids = features["continuous_ids"].flat_values.numpy()
        masks = Masks(ids, _numbered(schema.continuous))
        groups.append(FeatureGroup("continuous", ("continuous_ids", "continuous_values"), masks))
    if "categorical_ids" in features:
        entries = len(features["categorical_ids"].flat_values)
        if category_columns is None or len(category_columns) != entries:
            got = "none" if category_columns is None else str(len(category_columns))
            raise ValueError(
                f"category_columns must have the columns of {entries} categorical_ids, got {got}"
            )
        masks = Masks(category_columns, _numbered(schema.categorical))
        groups.append(FeatureGroup("categorical", ("categorical_ids",), masks))
    if "sparse_ids" in features:
        ids = features["sparse_ids"].flat_values.numpy()
        unique, counts = np.unique(ids, return_counts=True)
        frequent = np.sort(unique[np.argsort(-counts, kind="stable")][:MAX_SPARSE])
        masks = Masks(ids, {f"id {i}": int(i) for i in frequent})
        groups.append(FeatureGroup("sparse", ("sparse_ids", "sparse_values"), masks))
    return groups


def _matrices(features: Features, schema: Schema) -> list[FeatureGroup]:
    """The groups of the layout "fields", apart from raw sparse ids."""
    groups = []
    for name, keys, columns in (
        ("continuous", ("continuous", "continuous_present"), schema.continuous),
        ("categorical", ("categorical",), schema.fields),
    ):
        if name in features:
            owners = np.tile(np.arange(len(columns)), int(features[name].shape[0]))
            groups.append(FeatureGroup(name, keys, Masks(owners, _numbered(columns))))
    for bag in schema.bags:
        names = [f"{schema.bag_arrays(bag)}_{part}" for part in ("ids", "values")]
        found = tuple(name for name in names if name in features)
        if found:
            owners = np.zeros(len(features[found[0]].flat_values), np.int64)
            groups.append(FeatureGroup("categorical", found, Masks(owners, {bag: 0})))
    return groups


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(names)}
