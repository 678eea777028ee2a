"""Metrics, trials and warnings of a run as text, for the report and the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from twml_ops.training.results import Trial

Metrics = Mapping[str, float]

_NOTES = {
    "auc": "share of pairs in which the positive has the higher score",
    "pr_auc": "average precision",
    "log_loss": "a constant prediction has {entropy:.4f}",
    "normalized_entropy": "log loss / entropy of the base rate",
    "validation_log_loss": "on the validation data, after the chosen number of epochs",
    "rce": "reduction of that entropy in percent",
    "calibration": "mean prediction / mean label",
    "examples_per_second": "including reading",
    "seconds": "for these examples alone",
}

_NAMES = {
    "auc": "ROC AUC",
    "pr_auc": "PR AUC",
    "log_loss": "log loss",
    "normalized_entropy": "normalized entropy",
    "validation_log_loss": "validation log loss",
    "rce": "RCE",
    "examples_per_second": "examples / s",
}


class MetricRow(NamedTuple):
    """One metric as text.

    Attributes:
        key: its name in metrics.json.
        name: its name in tables.
        values: one for each column; empty where the column does not have the metric.
        value: the mean over all labels, after a calibration if there is one.
        note: a text that says what the metric means.
    """

    key: str
    name: str
    values: tuple[str, ...]
    value: str
    note: str


class MetricTable(NamedTuple):
    """The metrics of a run as text.

    Attributes:
        headings: the headings of the columns; the heading of a single column is empty.
        rows: one for each metric.
    """

    headings: tuple[str, ...]
    rows: tuple[MetricRow, ...]


def metric_table(
    metrics: Metrics,
    by_label: Mapping[str, Metrics],
    before: Mapping[str, Metrics] | None = None,
    errors: Metrics | None = None,
) -> MetricTable:
    """The metrics as text.

    Args:
        metrics: value by name, as in metrics.json: means over the labels.
        by_label: metrics of each label.
        before: the same before a calibration; None: there was none.
        errors: standard errors, of the metrics that have one.
    """
    from twml_ops.analysis import scoring  # which imports TensorFlow

    columns: dict[str, Metrics] = {} if before is None else {"before": scoring.mean_metrics(before)}
    columns[_main_heading(len(by_label), before is not None)] = metrics
    if len(by_label) > 1:
        for label, of_label in by_label.items():
            if before is not None:
                columns[f"{label} before"] = before[label]
            columns[label if before is None else f"{label} after"] = of_label
    entropy = base_rate_loss(by_label)
    rows = []
    for key, value in metrics.items():
        error = (errors or {}).get(key, math.nan)
        undefined = key == "log_loss" and math.isnan(entropy)  # labels of one value
        note = "" if undefined else _NOTES.get(key, "").format(entropy=entropy)
        note += f"; standard error {error:.2g}" if math.isfinite(error) else ""
        values = tuple(number_text(c[key]) if key in c else "" for c in columns.values())
        name = _NAMES.get(key, key.replace("_", " "))
        rows.append(MetricRow(key, name, values, number_text(value), note))
    return MetricTable(tuple(columns), tuple(rows))


def _main_heading(labels: int, calibrated: bool) -> str:
    if calibrated:
        return "after"
    return "mean" if labels > 1 else ""


def base_rate_loss(by_label: Mapping[str, Metrics]) -> float:
    """The log loss of a constant prediction, the share of positives; the mean over the labels."""
    losses = [m["log_loss"] / m["normalized_entropy"] for m in by_label.values()]
    return sum(losses) / len(losses)


def number_text(value: Any) -> str:
    """A value as text, numbers with at most four digits."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return "–"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def describe_trial(trial: Trial) -> str:
    """The model of a trial and the options that differ from its defaults."""
    options = {"learning_rate": f"{trial.learning_rate:.4g}", **trial.model_options}
    return " ".join([trial.model, *(f"{name}={_option_text(v)}" for name, v in options.items())])


def trial_line(trial: Trial) -> str:
    """The options of a trial, and its loss or why it has none."""
    result = f"log loss {loss_text(trial)}" if trial.outcome == "finished" else trial.outcome
    return f"{describe_trial(trial)}: {result}"


def loss_text(trial: Trial) -> str:
    """The loss of a trial, or its outcome if it is not finished."""
    return f"{trial.log_loss:.5f}" if trial.outcome == "finished" else trial.outcome


def _option_text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_option_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def leak_warnings(leaks: Mapping[str, float], data: str) -> list[str]:
    """A sentence for each feature.

    Args:
        leaks: area under the ROC curve by feature, as of `analysis.leaking_features`.
        data: name of the data set.
    """
    return [
        f"The feature {name} alone has an AUC of {area:.4f} on {data}. If its value is not known "
        "at the time of a prediction, remove it."
        for name, area in leaks.items()
    ]
