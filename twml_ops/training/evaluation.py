"""The predictions of a model for a data set, and what its features are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.analysis.explanation import Explanation, explain_features, frequent_sparse_ids
from twml_ops.analysis.feature_groups import take_sample
from twml_ops.analysis.leakage import leaking_features
from twml_ops.analysis.permutation_importance import FeatureImportance, permutation_importance
from twml_ops.analysis.profiles import Profile
from twml_ops.analysis.scoring import Scores
from twml_ops.data import Schema, Source, original_errors
from twml_ops.training.errors import UserError
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.sources import LARGE_BATCH_SIZE
from twml_ops.training.trained_run import TrainedRun

_IMPORTANCE_PREDICTIONS = 1 << 17  # which bounds the time for many features
_SAMPLE_ROWS, _FEWEST_ROWS = 8192, 128
# Rows times features, of which each feature is permuted once: the entries that are predicted.
_IMPORTANCE_ENTRIES = 1 << 30


def score_source(
    model: tf.keras.Model,
    source: Source,
    reporter: Reporter,
    size: int | None = None,
    title: str = "evaluating",
    batch_size: int = LARGE_BATCH_SIZE,
    labels: Sequence[str] | None = None,
    predict: Callable[[Any], Any] | None = None,
) -> dict[str, Scores]:
    """The predictions of a model for a data set by label, with its progress.

    Args:
        model: model that returns probabilities [B, 1]; of several labels a dict of them.
        source: the data set.
        reporter: is told what happens.
        size: number of examples, if known.
        title: label of the progress bar.
        batch_size: number of examples in a batch.
        labels: names of the labels of the model; None: the labels of the data set.
        predict: the compiled model, `scoring.predictor`; None: it is compiled.
    """
    with reporter.bar(title, size) as bar:
        batches = source.dataset(batch_size, layout=models.layout_of(model))
        names = source.schema.labels if labels is None else labels
        scores = scoring.score_labels(model, batches, names, bar.add, predict)
    if labels is None:
        for text in scoring.undefined_metrics(scores, source.name):
            reporter.warning(text)
    return scores


def iter_predictions(
    model: tf.keras.Model,
    source: Source,
    reporter: Reporter,
    labels: Sequence[str],
    batch_size: int = LARGE_BATCH_SIZE,
) -> Iterator[npt.NDArray[np.float32]]:
    """The predictions of a model for a data set, batch by batch, with their progress.

    Args:
        model: model that returns probabilities [B, 1]; of several labels a dict of them.
        source: the data set, of which only the features are used.
        reporter: is told what happens.
        labels: names of the labels of the model.
        batch_size: number of examples in a batch, B; the last one has fewer.

    Yields:
        float32 [B, number of labels], in the order of the data.

    Raises:
        ValueError: a prediction is NaN or infinite.
    """
    predict, first = scoring.predictor(model, labels), 0
    with reporter.bar(source.name, None) as bar:
        for features, *_ in source.dataset(batch_size, layout=models.layout_of(model)):
            found = predict(features).reshape(-1, len(labels))
            scoring.check_predictions(found, first)
            yield found
            first += len(found)
            bar.add(len(found))


def importances_of(
    model: tf.keras.Model,
    source: Source,
    seed: int,
    reporter: Reporter,
    predict: Callable[[Any], Any],
) -> list[FeatureImportance]:
    """The permutation importance of each feature on a random sample of a data set.

    The sample has at most 8,192 examples, and fewer for many features: 1,024 for 128 to 1,024
    features, 128 for 2,900 and more; see `sample_rows`.

    Args:
        model: model that returns probabilities [B, 1]; of several labels a dict of them.
        source: the data set.
        seed: seed of the sample.
        reporter: is told what happens.
        predict: the compiled model, `scoring.predictor`.
    """
    schema = source.schema
    rows = min(sample_rows(schema), max(1024, _IMPORTANCE_PREDICTIONS // _features(schema)))
    with reporter.phase("computing permutation importance"):
        layout = models.layout_of(model)
        return permutation_importance(predict, source, rows, layout=layout, sample_seed=seed)


def sample_rows(schema: Schema) -> int:
    """The default number of examples for permutation importance.

    A prediction of n features has n entries of an example, and there is one for each of them.

    Args:
        schema: the features.

    Returns:
        8,192; fewer beyond 362 features, whose square the number falls with; at least 128.
    """
    return max(_FEWEST_ROWS, min(_SAMPLE_ROWS, _IMPORTANCE_ENTRIES // _features(schema) ** 2))


def _features(schema: Schema) -> int:
    return max(1, len(schema.continuous) + len(schema.categorical))


def throughput(examples: int, seconds: float) -> dict[str, float]:
    """The entries of metrics.json about speed."""
    return {
        "examples_per_second": examples / seconds,
        "examples": examples,
        "seconds": seconds,
    }


def explain_features_of(
    trained: TrainedRun,
    data: str | None,
    against: str | None,
    rows: int | None,
    reporter: Reporter = SILENT,
) -> Explanation:
    """Analyses the features of a finished run.

    Args:
        trained: the run.
        data: SOURCE to analyse; None: the evaluation data of the run.
        against: SOURCE to compare it with, or None.
        rows: size of the sample for the permutation importance; None: see `sample_rows`.
        reporter: is told what happens.

    Raises:
        UserError: the data have no examples.
        ValueError: data cannot be read.
    """
    source = trained.source(data)
    other = None if against is None else trained.source(against)
    seed = trained.fact("seed", int)
    return explain_sources(trained.model, trained.schema, source, other, rows, seed, reporter)


def explain_sources(
    model: tf.keras.Model,
    schema: Schema,
    source: Source,
    other: Source | None,
    rows: int | None,
    seed: int,
    reporter: Reporter = SILENT,
) -> Explanation:
    """Analyses the features of a model.

    Args:
        model: the model.
        schema: its features.
        source: data to analyse.
        other: data to compare them with, or None.
        rows: size of the sample for the permutation importance; None: see `sample_rows`.
        seed: seed of the sample.
        reporter: is told what happens.

    Raises:
        UserError: the data have no examples.
        ValueError: data cannot be read.
    """
    sources = [source] if other is None else [source, other]
    with original_errors(*sources):
        size = sample_rows(schema) if rows is None else rows
        sample = take_sample(source, size, models.layout_of(model), seed)
        if sample is None:
            raise UserError(f"{source.name}: has no examples")
        ids = frequent_sparse_ids(sample, schema)
        profiles = [_profile(reporter, s, schema, ids) for s in sources]
        now, before = profiles[0], profiles[-1]
        leaks = leaking_features(source.blocks(), schema)
        with reporter.phase("computing permutation importance"):
            found = explain_features(model, sample, schema, now, before if other else None)
    return Explanation(
        found,
        source.name,
        other.name if other else None,
        (now.examples, before.examples if other else 0),
        len(sample.labels),
        leaks,
    )


def _profile(reporter: Reporter, source: Source, schema: Schema, ids: list[int]) -> Profile:
    profile = Profile(schema, ids)
    with reporter.bar(source.name, None) as bar:
        for block in source.blocks():
            profile.add(block)
            bar.add(len(block))
    return profile
