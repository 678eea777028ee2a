"""report.html: a run on one self-contained page.

The plots are imported when they are drawn, because Matplotlib takes long to import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jinja2

from twml_ops.analysis import scoring
from twml_ops.analysis.lift import lift_table
from twml_ops.analysis.scoring import Scores
from twml_ops.report.result_tables import (
    base_rate_loss,
    describe_trial,
    leak_warnings,
    loss_text,
    metric_table,
    number_text,
)
from twml_ops.training.results import RunResult, SpeedComparison, Trial

TOP_FEATURES = 25
Picture = tuple[str, str, str, bool]  # title, note, image, whether it has the whole width
_TILES = ("auc", "log_loss", "rce", "calibration", "examples_per_second")


def render(result: RunResult) -> str:
    """The report of a run: one HTML page that loads nothing else."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("twml_ops.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    several = len(result.scores) > 1
    # The mean over labels has no standard error: the labels of an example are not independent.
    errors = None if several else scoring.standard_errors(*result.scores.values())
    table = metric_table(result.metrics, result.label_metrics, result.metrics_before(), errors)
    return env.get_template("report.html.j2").render(
        **shown_facts(result.facts),
        tiles=[row for row in table.rows if row.key in _TILES],
        pictures=_pictures(result),
        metrics=table,
        lifts=[
            {"title": f"Lift of {label}" if several else "Lift", "rows": _lift_rows(scores)}
            for label, scores in result.scores.items()
        ],
        phases=_phase_rows(result),
    )


def shown_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """What the report shows of the facts of a run, the content of its run.json.

    Raises:
        KeyError, ValueError, TypeError or AttributeError: an entry is missing or damaged.
    """
    return {
        "title": f"{facts['model']} on {facts['data']}",
        "subtitle": f"{facts['finished']} · twml-ops {facts['versions']['twml_ops']}",
        "eval_name": facts["eval_source"],
        "trials": _trial_rows(facts),
        "warnings": [*leak_warnings(*_leaks(facts)), *_slow_cluster(facts)],
        "configuration": _configuration(facts),
        "command": facts["command"],
    }


def _lift_rows(scores: Scores) -> list[dict[str, Any]]:
    """The rows of the lift table as text; `share` is the length of the bar in percent."""
    return [
        {
            "rank": rank,
            "examples": number_text(row.examples),
            "least": number_text(row.least),
            "predicted": number_text(row.predicted),
            "observed": number_text(row.observed),
            "lift": f"{row.lift:.2f}" if math.isfinite(row.lift) else "–",
            "captured": f"{row.captured:.1%}" if math.isfinite(row.captured) else "–",
            "share": round(100 * row.captured, 1) if math.isfinite(row.captured) else 0,
        }
        for rank, row in enumerate(lift_table(scores), 1)
    ]


def _leaks(facts: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """The features that alone predict the label, and the data that showed it."""
    found = facts.get("leaks") or {"features": {}, "data": ""}
    return found["features"], found["data"]


def _slow_cluster(facts: Mapping[str, Any]) -> list[str]:
    """The warning that a cluster is slower than one process, if it is."""
    speeds = facts.get("speeds")
    warning = speeds and SpeedComparison(**speeds).warning()
    return [warning] if warning else []


def _trial_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials of the choice of the model as text; none if it was not chosen."""
    choice = facts.get("model_choice") or {"trials": []}
    trials = [Trial.from_facts(trial) for trial in choice["trials"]]
    return [
        {
            "number": i + 1,
            "loss": loss_text(trial),
            "epochs": trial.epochs,
            "seconds": f"{trial.seconds:,.1f}",
            "model": describe_trial(trial),
            "best": i == choice["best"],
        }
        for i, trial in enumerate(trials)
    ]


def _phase_rows(result: RunResult) -> list[dict[str, str]]:
    """The phases so far as text; none if nothing was trained."""
    if result.phases is None:
        return []
    seconds = {**result.phases.seconds, "all together, until this report": result.phases.total()}
    return [{"name": name, "seconds": f"{value:,.1f}"} for name, value in seconds.items()]


def _pictures(result: RunResult) -> list[dict[str, Any]]:
    from twml_ops.report.plots import feature_bars, svg

    before, several = result.uncalibrated_scores, len(result.scores) > 1
    pictures: list[Picture] = []
    for label, scores in result.scores.items():
        if before is not None:
            of_label = f" of {label}" if several else ""
            pictures.append(_before_and_after(before[label], scores, of_label))
    pictures += _learning_curves(result, base_rate_loss(result.label_metrics))
    for label, scores in result.scores.items():
        pictures += _score_pictures(scores, f" of {label}" if several else "")
    if result.importances:
        top = result.importances[:TOP_FEATURES]
        bars = feature_bars([f.name for f in top], [f.importance for f in top])
        more = len(result.importances) - len(top)
        note = "Increase of the log loss when one feature is permuted over the rows."
        note += " The mean over the labels." if several else ""
        note += f" The {len(top)} most important of {len(result.importances)}." if more else ""
        pictures.append(
            ("Permutation importance", note, svg(bars, 10.4, 0.9 + 0.25 * len(top)), True)
        )
    keys = ("title", "note", "image", "wide")
    return [dict(zip(keys, p, strict=True)) for p in pictures]


def _score_pictures(scores: Scores, of_label: str) -> list[Picture]:
    """The calibration and the distribution of the predictions of one label."""
    from twml_ops.report.plots import calibration, reliability, score_histogram, svg

    labels, predictions, *_ = scores
    curve = {"1/20 of the examples, 95 % interval": reliability(labels, predictions)}
    return [
        (
            f"Calibration{of_label}",
            "Share of positives against mean prediction. Each dot is a twentieth of the examples.",
            svg(calibration(curve), 5.2, 3.9),
            False,
        ),
        (
            f"Scores{of_label}",
            f"Density of the predictions for {len(labels):,} examples. A good model separates the "
            "two classes.",
            svg(score_histogram(labels, predictions), 5.2, 3.9),
            False,
        ),
    ]


def _learning_curves(result: RunResult, base_rate_loss: float) -> list[Picture]:
    """The curve of the training that early stopping ended, and that of the final one."""
    from twml_ops.report.plots import learning_curve, svg

    curves, choice, history = [], result.epoch_choice, result.history
    if choice is not None:
        text = (
            f"Log loss during a training on {choice.fit_examples:,} examples, and after each epoch "
            f"on the validation data, {choice.validation_examples:,} examples. It was lowest after "
            f"epoch {choice.epochs}: {choice.log_loss:.4f}. "
        )
        text += (
            f"The model was then trained again, on all training data, for {choice.epochs} epochs."
            if choice.refit
            else "The model has the weights of that epoch."
        )
        curves.append(("Choice of the number of epochs", text, choice.history))
    if (choice is None or choice.refit) and (history.train_loss or history.monitored_loss):
        text = "Log loss during the training"
        text += " of the first member" if result.facts.get("members") else ""
        if history.monitored_loss:
            text += (
                ", and on the evaluation data after each epoch. The evaluation data are not used "
                "to choose anything"
            )
        curves.append(("Learning curve", f"{text}.", history))
    return [
        (title, text, svg(learning_curve(history, base_rate_loss), 10.4, 3.4), True)
        for title, text, history in curves
    ]


def _before_and_after(before: Scores, after: Scores, of_label: str) -> Picture:
    from twml_ops.report.plots import calibration, reliability, svg

    curves = {
        name: reliability(scores.labels, scores.predictions)
        for name, scores in (("before", before), ("after", after))
    }
    gaps = [f"{scoring.calibration_error(s):.4f}" for s in (before, after)]
    note = (
        "Share of positives against mean prediction, on examples that were used to fit neither the "
        "model nor the calibration. Each dot is a twentieth of the examples, with a 95 % interval. "
        f"The mean distance from the diagonal is {gaps[0]} before and {gaps[1]} after."
    )
    picture = svg(calibration(curves), 10.4, 4.6)
    return f"Reliability{of_label} before and after the calibration", note, picture, True


def _configuration(facts: dict[str, Any]) -> list[dict[str, Any]]:
    hidden = ("twml_ops_run", "command", "finished", "data", "eval")
    flat = {k: v for k, v in facts.items() if isinstance(v, (str, int, float)) and k not in hidden}
    choice = facts.get("epoch_choice") or {}
    flat.update({f"early_stopping_{k}": v for k, v in choice.items()})
    calibration = facts.get("calibration", {})
    flat.update({f"calibration_{k}": v for k, v in calibration.items() if v is not None})
    flat.update({f"cluster_{k}": v for k, v in (facts.get("cluster") or {}).items()})
    flat.update(facts["versions"])
    return [{"name": k.replace("_", " "), "value": number_text(v)} for k, v in flat.items()]
