"""Boosted trees beside the net of a model on fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops._phases import phase
from twml_ops.layers import BoostedTrees
from twml_ops.models._crosses import ROW_KEYS, Array
from twml_ops.models._field_statistics import StatisticsColumns

_MIN_GAIN = 0.01
_NUM_ENSEMBLES = 3
_SMALL = 50_000  # examples up to which other trees can be tried
_FINE = {
    "max_trees": 1000,
    "max_depth": 16,
    "num_leaves": 63,
    "min_examples": 20,
    "learning_rate": 0.05,
}
_LARGE = 100_000  # examples for which large trees are worth their time


class TreeStatistics(NamedTuple):
    """Columns of the trees that depend on labels.

    Attributes:
        columns: the statistics.
        first: number of columns of the trees in front of them.
    """

    columns: StatisticsColumns
    first: int

    def known(self, inputs: list[Array], fold: int) -> list[Array]:
        """The inputs of the trees as the ensemble of a fold may know them: without its labels.

        Args:
            inputs: the columns without statistics, whether numbers are there, where categories are
                in the statistics, and row keys; see `_examples`.
            fold: fold of the ensemble.
        """
        others, *present, places, row_keys = inputs
        found = self.columns.without(places, row_keys, fold)
        x = [others[:, : self.first], found, others[:, self.first :]]
        return [np.concatenate(x, axis=1), *present]

    def state(self) -> list[Array]:
        """Arrays that determine, with its inputs, what `known` returns."""
        return [np.array([self.first]), *self.columns.state()]


def wanted(trees: bool | None, dataset: tf.data.Dataset) -> bool:
    """Whether a model has trees: as asked, or, if not asked, if they can be trained."""
    if trees is None:
        return ROW_KEYS in dataset.element_spec[0] and BoostedTrees.is_available()
    return trees


def tree_options(num_examples: int, ensembles: int | None) -> dict[str, Any]:
    """The arguments of `BoostedTrees` that suit a number of examples.

    Some data need many small steps with few examples in a leaf, others do not, and small data can
    try both. For large data, as many leaves in fewer, larger trees take a third less time.

    Args:
        num_examples: number of examples.
        ensembles: number of ensembles; None: the default.
    """
    chosen: dict[str, Any] = {"num_ensembles": _NUM_ENSEMBLES if ensembles is None else ensembles}
    if num_examples < _LARGE:
        both = {"alternatives": [_FINE]} if num_examples < _SMALL else {}
        return {**chosen, **both, "max_trees": 300, "num_leaves": 31}
    return {**chosen, "max_trees": 150, "num_leaves": 63}


def tree_logits(
    inputs: dict[str, Any],
    x: Any,
    others: Sequence[Any],
    present: Any,
    dataset: tf.data.Dataset,
    labels: tuple[str, ...],
    statistics: TreeStatistics | None,
    options: dict[str, Any],
) -> list[Any]:
    """Trains trees for each label.

    Args:
        inputs: symbolic inputs of the model, by name.
        x: what the trees are made of, symbolic, float [B, C].
        others: the parts [B, any] of x that are no statistics, in their order.
        present: bool [B, P], whether the first P columns are there; None: P is 0.
        dataset: batches in the layout "keyed_fields".
        labels: names of the labels.
        statistics: which columns of x are statistics; None: none are.
        options: arguments of `BoostedTrees`.

    Returns:
        The logit [B, 1] of each label; nothing if the trees of a label reduce the log loss of other
        examples than theirs by less than 1 % of that of a constant.
    """
    parts = [x] if present is None else [x, present]
    given = [*others] if present is None else [*others, present]
    extract = _extractor(inputs, given, dataset)
    optional = 0 if present is None else int(present.shape[1])
    logits = []
    for index, label in enumerate(labels):
        # NumPy's generator has the seed of `tf.keras.utils.set_random_seed`.
        seed = int(np.random.randint(1 << 31))  # noqa: NPY002
        folds: dict[str, Any] = (
            {} if statistics is None else {"num_folds": statistics.columns.num_folds}
        )
        trees = BoostedTrees(
            int(x.shape[1]),
            optional,
            **folds,
            **options,
            seed=seed,
            out_of_fold=False,
            name=f"trees_{index}",
        )
        with phase("boosted trees"):
            trees.adapt(
                _examples(
                    extract, len(others), dataset, label if len(labels) > 1 else None, statistics
                ),
                columns=statistics and statistics.known,
                state=statistics and statistics.state(),
            )
        if trees.held_out_gain < _MIN_GAIN:
            return []
        logits.append(trees(parts))
    return logits


def _extractor(
    inputs: dict[str, Any], tensors: list[Any], dataset: tf.data.Dataset
) -> Callable[[Any], list[Any]]:
    """A function from the features of a batch to tensors of a model."""
    if not tensors:
        return lambda features: []
    model = tf.keras.Model(inputs, tensors)
    spec = {name: dataset.element_spec[0][name] for name in model.input}
    # Traced once: the last batch has another length.
    call = tf.function(
        lambda features: tf.nest.flatten(model(features, training=False)),
        input_signature=[spec],
        autograph=False,
    )
    return lambda features: call({name: features[name] for name in spec})


def _examples(
    extract: Callable[[Any], list[Any]],
    num_others: int,
    dataset: tf.data.Dataset,
    label: str | None,
    statistics: TreeStatistics | None,
) -> Iterator[tuple[Any, ...]]:
    """Batches for `BoostedTrees.adapt`, with the places of categories instead of statistics."""
    for features, labels, *weights in dataset:
        if ROW_KEYS not in features:
            raise ValueError(
                f"dataset must have the feature {ROW_KEYS}, as that of data.Source has, for "
                f"boosted trees, got {sorted(features)}: add it, or pass trees=False"
            )
        found = [tensor.numpy() for tensor in extract(features)]
        none = np.zeros((len(features[ROW_KEYS]), 0), np.float32)
        columns = [np.concatenate([none, *found[:num_others]], axis=1), *found[num_others:]]
        if statistics is not None:
            columns.append(statistics.columns.find(features["categorical"]))
        y = labels if label is None else labels[label]
        yield [*columns, features[ROW_KEYS]], y, *weights
