"""What each feature contributes, how often it is there, and how it has moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.analysis import scoring
from twml_ops.analysis.feature_masks import Array, Entries, Features, entries_of
from twml_ops.analysis.permutation_importance import batch_importance
from twml_ops.analysis.population_stability import BINS, CATEGORIES, Drift, population_stability
from twml_ops.analysis.profiles import Histogram, Profile
from twml_ops.analysis.weight_norms import weight_norms
from twml_ops.data import Schema


class Feature(NamedTuple):
    """What is known of one feature.

    Attributes:
        name: of the feature; sparse ids are called `id 7`.
        group: continuous, categorical or sparse.
        worth: log loss added when it is shuffled over the rows of the sample.
        weight_norm: root mean square norm of the weights its entries read; NaN without entries.
        coverage: share of the examples that have it.
        missing: the other share; NaN for a sparse id, whose absence is no gap.
        before: coverage in the data it is compared with; NaN if there are none.
        drift: population stability index against them; NaN if there are none.
        histograms: (before, now) that the index is made of, if there are any.
    """

    name: str
    group: str
    worth: float
    weight_norm: float
    coverage: float
    missing: float
    before: float
    drift: Drift
    histograms: tuple[Histogram, Histogram] | None


class Explanation(NamedTuple):
    """The features of a run on some data.

    Attributes:
        features: the one worth most first.
        data: name of the data.
        against: name of the data they are compared with, or None.
        examples: of either.
        sample: how many examples were shuffled.
        undecided: share of categories whose column could not be told.
    """

    features: list[Feature]
    data: str
    against: str | None
    examples: tuple[int, int]
    sample: int
    undecided: float


def sparse_ids_of(features: Features, schema: Schema) -> list[int]:
    """The sparse ids of a batch that are looked at: those that a `Profile` must count."""
    numbers = _numbers(entries_of(features, schema))
    return [number for group, number in numbers.values() if group == "sparse"]


def explain_features(
    model: tf.keras.Model,
    features: Features,
    labels: Array,
    schema: Schema,
    now: Profile,
    before: Profile | None = None,
) -> list[Feature]:
    """What the features of a batch contribute to a model, the one worth most first.

    Args:
        model: gives probabilities [B, 1].
        features: a sample of the data, as one batch.
        labels: of it, [B].
        schema: names of the continuous and categorical features.
        now: the profile of all the data.
        before: the profile of data to compare them with, or None.
    """
    numbers = _numbers(entries_of(features, schema))
    if before is not None:
        now.learn_columns(before)
        before.learn_columns(now)
    groups = entries_of(features, schema, now.known_columns())
    found = batch_importance(scoring.predictor(model), features, labels, groups)
    norms = weight_norms(model, features, groups)
    return [_feature(w.name, *numbers[w.name], w.loss, norms[w.name], now, before) for w in found]


def _numbers(groups: list[Entries]) -> dict[str, tuple[str, int]]:
    """Group, and position in the schema or sparse id, of each feature by its name."""
    out = {}
    for group in groups:
        for position, name in enumerate(group.features):
            number = int(name.split()[1]) if group.group == "sparse" else position
            out[name] = (group.group, number)
    return out


def _feature(
    name: str,
    group: str,
    number: int,
    worth: float,
    norm: float,
    now: Profile,
    before: Profile | None,
) -> Feature:
    share: Callable[[Profile], float] = lambda p: p.present(group, number) / max(p.examples, 1)  # noqa: E731
    coverage, drift, histograms = share(now), Drift(np.nan, np.nan), None
    if before is not None:
        bins = CATEGORIES if group == "categorical" else BINS
        histograms = (
            before.histogram(group, number, before, bins),
            now.histogram(group, number, before, bins),
        )
        drift = population_stability(histograms[0].counts, histograms[1].counts)
    return Feature(
        name,
        group,
        worth,
        norm,
        coverage,
        np.nan if group == "sparse" else 1 - coverage,
        np.nan if before is None else share(before),
        drift,
        histograms,
    )
