"""report.html: one file that shows a run, with nothing to fetch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jinja2

from twml_ops.analysis import scoring
from twml_ops.analysis.lift import lift_table
from twml_ops.analysis.permutation_importance import FeatureImportance
from twml_ops.analysis.scoring import Scores
from twml_ops.cli.render import plots
from twml_ops.cli.render.plots import Point

TOP_FEATURES = 25

_NOTES = {
    "auc": "how often a positive is ranked first",
    "pr_auc": "average precision",
    "log_loss": "the base rate alone: {entropy:.4f}",
    "normalized_entropy": "log loss / entropy of the base rate",
    "rce": "per cent of that entropy explained",
    "calibration": "mean prediction / mean label",
    "examples_per_second": "reading included",
    "examples": "",
    "seconds": "",
}
_NAMES = {
    "auc": "ROC AUC",
    "pr_auc": "PR AUC",
    "log_loss": "log loss",
    "normalized_entropy": "normalized entropy",
    "rce": "RCE",
    "examples_per_second": "examples / s",
}
_TILES = ("auc", "log_loss", "rce", "calibration", "examples_per_second")


class Facts(NamedTuple):
    """What a report is made of.

    Attributes:
        metrics: as in metrics.json.
        run: as in run.json.
        scores: of the evaluation data.
        train: learning curve on the training data.
        held_out: log loss on the evaluation data after each epoch.
        worth: what each feature is worth, the most useful first.
        uncalibrated: scores of the same data before a calibration, if there was one.
    """

    metrics: dict[str, float]
    run: dict[str, Any]
    scores: Scores
    train: list[Point]
    held_out: list[Point]
    worth: list[FeatureImportance]
    uncalibrated: Scores | None = None


def render(facts: Facts) -> str:
    """The page, HTML."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("twml_ops.cli.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    run = facts.run
    before = None if facts.uncalibrated is None else scoring.metrics(facts.uncalibrated)
    rows = explain(facts.metrics, before, scoring.standard_errors(facts.scores))
    return env.get_template("report.html.j2").render(
        title=f"{run['model']} on {run['data']}",
        subtitle=f"{run['finished']} · twml-ops {run['versions']['twml_ops']}",
        tiles=[row for row in rows if row["key"] in _TILES],
        pictures=_pictures(facts),
        eval_name=run["eval_source"],
        metrics=rows,
        compared=before is not None,
        lift=_lift(facts.scores),
        configuration=_configuration(run),
        command=run["command"],
    )


def explain(
    metrics: Mapping[str, float],
    before: Mapping[str, float] | None = None,
    errors: Mapping[str, float] | None = None,
) -> list[dict[str, str]]:
    """Key, name, value as text, and a few words on what it means, of each metric.

    Args:
        metrics: as in metrics.json.
        before: those of the same data before a calibration.
        errors: standard errors, of those that have one.
    """
    entropy = metrics["log_loss"] / metrics["normalized_entropy"]
    rows = []
    for key, value in metrics.items():
        note, error = _NOTES[key].format(entropy=entropy), (errors or {}).get(key, math.nan)
        rows.append(
            {
                "key": key,
                "name": _NAMES.get(key, key.replace("_", " ")),
                "before": _number(before[key]) if before and key in before else "",
                "value": _number(value),
                "note": note + (f"; standard error {error:.2g}" if math.isfinite(error) else ""),
            }
        )
    return rows


def _lift(scores: Scores) -> list[dict[str, Any]]:
    """The rows of the lift table as text; `share` is the length of the bar in per cent."""
    return [
        {
            "rank": rank,
            "examples": _number(row.examples),
            "least": _number(row.least),
            "predicted": _number(row.predicted),
            "observed": _number(row.observed),
            "lift": f"{row.lift:.2f}" if math.isfinite(row.lift) else "–",
            "captured": f"{row.captured:.1%}" if math.isfinite(row.captured) else "–",
            "share": round(100 * row.captured, 1) if math.isfinite(row.captured) else 0,
        }
        for rank, row in enumerate(lift_table(scores), 1)
    ]


def _pictures(facts: Facts) -> list[dict[str, Any]]:
    labels, predictions, _ = facts.scores
    entropy = facts.metrics["log_loss"] / facts.metrics["normalized_entropy"]
    n = f"{len(labels):,}"
    pictures = []
    if facts.uncalibrated is not None:
        pictures.append(_before_and_after(facts.uncalibrated, facts.scores))
    if facts.train or facts.held_out:
        pictures.append(
            (
                "Learning curve",
                "Log loss while training, and on the evaluation data after each epoch. The latter "
                "is only looked at: the number of epochs was fixed before.",
                plots.svg(plots.learning_curve(facts.train, facts.held_out, entropy), 10.4, 3.4),
                True,
            )
        )
    curve = {"1/20 of the examples, 95 % interval": plots.reliability(labels, predictions)}
    pictures += [
        (
            "Calibration",
            "Does it happen as often as predicted? Each dot is a twentieth of the examples.",
            plots.svg(plots.calibration(curve), 5.2, 3.9),
            False,
        ),
        (
            "Scores",
            f"How the predictions for {n} examples spread: the further apart, the better.",
            plots.svg(plots.score_histogram(labels, predictions), 5.2, 3.9),
            False,
        ),
    ]
    if facts.worth:
        top = facts.worth[:TOP_FEATURES]
        bars = plots.feature_bars([w.name for w in top], [w.loss for w in top])
        more = len(facts.worth) - len(top)
        note = "Log loss added when one feature is shuffled over the rows and the rest stay"
        note += f"; the {len(top)} most useful of {len(facts.worth)}." if more else "."
        pictures.append(
            ("What each feature is worth", note, plots.svg(bars, 10.4, 0.9 + 0.25 * len(top)), True)
        )
    keys = ("title", "note", "image", "wide")
    return [dict(zip(keys, p, strict=True)) for p in pictures]


def _before_and_after(before: Scores, after: Scores) -> tuple[str, str, str, bool]:
    curves = {
        name: plots.reliability(scores.labels, scores.predictions)
        for name, scores in (("before", before), ("after", after))
    }
    gaps = [f"{scoring.calibration_error(s):.4f}" for s in (before, after)]
    note = (
        "Does it happen as often as predicted, on examples that neither the model nor the "
        "calibration has learned from? Twentieths of the examples, with 95 % intervals; their mean "
        f"distance from the diagonal is {gaps[0]} before and {gaps[1]} after."
    )
    picture = plots.svg(plots.calibration(curves), 10.4, 4.6)
    return "Reliability before and after the calibration", note, picture, True


def _configuration(run: dict[str, Any]) -> list[dict[str, Any]]:
    hidden = ("twml_ops_run", "command", "finished", "data", "eval")
    flat = {k: v for k, v in run.items() if isinstance(v, (str, int, float)) and k not in hidden}
    calibration = run.get("calibration", {})
    flat.update({f"calibration_{k}": v for k, v in calibration.items() if v is not None})
    flat.update(run["versions"])
    return [{"name": k.replace("_", " "), "value": _number(v)} for k, v in flat.items()]


def _number(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return "–"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
