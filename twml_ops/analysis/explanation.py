"""Importance, weight norm, coverage and drift of each feature of a model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.analysis import scoring
from twml_ops.analysis.feature_groups import FeatureGroup, Sample, feature_groups
from twml_ops.analysis.permutation_importance import batch_importance
from twml_ops.analysis.population_stability import BINS, CATEGORIES, Drift, population_stability
from twml_ops.analysis.profiles import Histogram, Profile
from twml_ops.analysis.weight_norms import weight_norms
from twml_ops.data import Schema


class FeatureSummary(NamedTuple):
    """The results of all analyses of one feature.

    Attributes:
        name: name of the feature; `id 7` for a sparse id.
        group: "continuous", "categorical" or "sparse".
        importance: permutation importance; see `permutation_importance`.
        weight_norm: root mean square norm of the weights that its entries read; NaN if it has no
            entries. See `weight_norms`.
        coverage: share of the examples that have the feature.
        missing: share of the examples that do not have it; NaN for a sparse id, which is no column
            that could have a missing value.
        coverage_before: coverage in the data set of the comparison; NaN without a comparison.
        drift: population stability index of the comparison; NaN without a comparison.
        histograms: (before, now), the histograms of the index; None without a comparison.
    """

    name: str
    group: str
    importance: float
    weight_norm: float
    coverage: float
    missing: float
    coverage_before: float
    drift: Drift
    histograms: tuple[Histogram, Histogram] | None


class Explanation(NamedTuple):
    """An analysis of the features of a run on a data set.

    Attributes:
        features: the features, in descending order of importance.
        data: name of the data set.
        against: name of the data set of the comparison; None without a comparison.
        examples: number of examples of the two data sets.
        sample: number of examples on which the importance was computed.
        leaks: area under the ROC curve of features that alone predict the label, see
            `leaking_features`.
    """

    features: list[FeatureSummary]
    data: str
    against: str | None
    examples: tuple[int, int]
    sample: int
    leaks: dict[str, float] = {}  # noqa: RUF012  (an immutable default of a named tuple)


def frequent_sparse_ids(sample: Sample, schema: Schema) -> list[int]:
    """The sparse ids of a sample that are analysed as features: the most frequent ones.

    Args:
        sample: examples of the data.
        schema: the features of the data.

    Returns:
        The ids that a `Profile` has to count, ascending.
    """
    numbers = _numbers(_groups(sample, schema), schema)
    return [number for group, number in numbers.values() if group == "sparse"]


def explain_features(
    model: tf.keras.Model,
    sample: Sample,
    schema: Schema,
    now: Profile,
    before: Profile | None = None,
) -> list[FeatureSummary]:
    """Analyses each feature of a model.

    Args:
        model: functional model that returns probabilities [B, 1]; of several labels a dict of them.
        sample: examples of the data set.
        schema: names of the labels and of the continuous and categorical features.
        now: profile of the whole data set.
        before: profile of the data set of the comparison; None: no comparison.

    Returns:
        The features, in descending order of importance.
    """
    groups = _groups(sample, schema)
    numbers = _numbers(groups, schema)
    predict = scoring.predictor(model, schema.labels)
    importances = batch_importance(predict, sample.features, sample.labels, groups)
    norms = weight_norms(model, sample.features, groups)
    return [
        _summary(f.name, *numbers[f.name], f.importance, norms[f.name], now, before)
        for f in importances
    ]


def _groups(sample: Sample, schema: Schema) -> list[FeatureGroup]:
    return feature_groups(sample.features, schema, sample.category_columns)


def _numbers(groups: list[FeatureGroup], schema: Schema) -> dict[str, tuple[str, int]]:
    """Name of a feature → its group, and its position in the schema or its sparse id."""
    of_schema = {"continuous": schema.continuous, "categorical": schema.categorical}
    columns = {kind: {n: i for i, n in enumerate(names)} for kind, names in of_schema.items()}
    numbers = {}
    for group in groups:
        for name in group.masks:
            sparse = group.name == "sparse"
            number = int(name.split()[1]) if sparse else columns[group.name][name]
            numbers[name] = (group.name, number)
    return numbers


def _summary(
    name: str,
    group: str,
    number: int,
    importance: float,
    weight_norm: float,
    now: Profile,
    before: Profile | None,
) -> FeatureSummary:
    coverage = now.coverage(group, number)
    drift, histograms = Drift(np.nan, np.nan), None
    if before is not None:
        bins = CATEGORIES if group == "categorical" else BINS
        histograms = (
            before.histogram(group, number, before, bins),
            now.histogram(group, number, before, bins),
        )
        drift = population_stability(histograms[0].counts, histograms[1].counts)
    return FeatureSummary(
        name,
        group,
        importance,
        weight_norm,
        coverage,
        np.nan if group == "sparse" else 1 - coverage,
        np.nan if before is None else before.coverage(group, number),
        drift,
        histograms,
    )
