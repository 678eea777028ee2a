"""The features of a run: a table on the terminal, and a section of the report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.analysis.explanation import Explanation, FeatureSummary
from twml_ops.analysis.population_stability import MODERATE, STRONG, Drift
from twml_ops.cli.render import plots
from twml_ops.cli.render.leaks import print_leaks, warnings_of
from twml_ops.cli.render.report import TOP_FEATURES

DRIFTED = 6
SHOWN_BINS = 12
_DASHED = " Dashed lines: moderate and strong drift."
_LEVELS = {"strong": "bold red", "moderate": "yellow", "none": "green", "": "dim"}


def print_explanation(
    console: Console, run: Path, explanation: Explanation, top: int, report: Path
) -> None:
    """Prints the table of the features of a run and where the report is.

    Args:
        console: where to print.
        run: folder of the run.
        explanation: the features.
        top: number of rows of the table.
        report: the report that has the plots.
    """
    title = f"[bold]{escape(str(run))}[/] on {escape(explanation.data)}"
    if explanation.against is not None:
        title += f", against {escape(explanation.against)}"
    console.print(title, soft_wrap=True)
    print_table(console, explanation, top)
    print_leaks(console, explanation.leaks, explanation.data)
    console.print(f"[dim]the plots are in[/] [bold]{escape(str(report))}[/]")


def to_json(explanation: Explanation) -> dict[str, Any]:
    """What `twml-ops explain --json` prints."""
    features = []
    for f in explanation.features:
        row = f._asdict()
        row.pop("histograms")
        drift = row.pop("drift")
        features.append({**row, **drift._asdict()})
    return {**explanation._asdict(), "features": features}


def print_table(console: Console, explanation: Explanation, top: int) -> None:
    """Prints a table with one feature per row, in descending order of importance.

    Args:
        console: where to print.
        explanation: the features.
        top: maximum number of rows.
    """
    compared = explanation.against is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("feature", style="bold", overflow="fold")
    table.add_column("group", style="dim")
    table.add_column("importance", justify="right", style="cyan")
    table.add_column("", no_wrap=True)
    table.add_column("weights", justify="right")
    table.add_column("coverage", justify="right")
    table.add_column("missing", justify="right")
    if compared:
        table.add_column("before", justify="right", style="dim")
        table.add_column("PSI", justify="right")
    most = max([f.importance for f in explanation.features], default=0)
    for f in explanation.features[:top]:
        cells = [
            escape(f.name),
            f.group,
            f"{f.importance:.5f}",
            _bar(f.importance, most),
            *_shares(f),
        ]
        if compared:
            style = _LEVELS[level(f.drift)]
            cells += [_percent(f.coverage_before), f"[{style}]{_decimal(f.drift.psi)}[/]"]
        table.add_row(*cells)
    console.print(table)
    rest = len(explanation.features) - top
    if rest > 0:
        console.print(f"[dim]and {rest} more; --top sets how many are shown[/]")


def render(explanation: Explanation) -> str:
    """The section of the report about the features, HTML."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("twml_ops.cli.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return env.get_template("features.html.j2").render(
        explanation=explanation,
        rows=[_row(f) for f in explanation.features],
        pictures=_pictures(explanation),
        moderate=MODERATE,
        strong=STRONG,
        warnings=warnings_of(explanation.leaks, explanation.data),
    )


def level(drift: Drift) -> str:
    """Size of a drift: "strong", "moderate" or "none"; "" without a comparison."""
    if math.isnan(drift.psi):
        return ""
    return "strong" if drift.psi > STRONG else "moderate" if drift.psi > MODERATE else "none"


def _row(f: FeatureSummary) -> dict[str, Any]:
    weights, coverage, missing = _shares(f)
    return {
        "name": f.name,
        "group": f.group,
        "importance": f"{f.importance:.5f}",
        "weights": weights,
        "coverage": coverage,
        "missing": missing,
        "before": _percent(f.coverage_before),
        "psi": _decimal(f.drift.psi),
        "chance": f"{f.drift.psi_by_chance:.4f}" if math.isfinite(f.drift.psi_by_chance) else "–",
        "level": level(f.drift),
    }


def _pictures(explanation: Explanation) -> list[dict[str, Any]]:
    top = explanation.features[:TOP_FEATURES]
    if not top:
        return []
    names = [f.name for f in top]
    columns = {
        "increase of log loss when permuted": [f.importance for f in top],
        "norm of the weights": [f.weight_norm for f in top],
        "coverage": [f.coverage for f in top],
    }
    if explanation.against is not None:
        columns["population stability index"] = [f.drift.psi for f in top]
    more = len(explanation.features) - len(top)
    note = (
        f" The {len(top)} most important of {len(explanation.features)} features." if more else ""
    )
    pictures = [
        {
            "title": "Features side by side",
            "note": "Importance, norm of the weights and coverage of each feature."
            f"{note}" + _DASHED * (explanation.against is not None),
            "image": plots.bar_columns(names, columns, [MODERATE, STRONG]),
        }
    ]
    drifted = sorted(
        (f for f in explanation.features if f.histograms and not math.isnan(f.drift.psi)),
        key=lambda f: -f.drift.psi,
    )[:DRIFTED]
    if drifted:
        pictures.append(
            {
                "title": "Strongest drift",
                "note": f"Shares of the examples in each bin: grey for {explanation.against}, "
                f"blue for {explanation.data}. The bins are tenths of the former, or its most "
                "frequent categories.",
                "image": plots.histogram_grid([_histogram_pair(f) for f in drifted]),
            }
        )
    return pictures


def _histogram_pair(f: FeatureSummary) -> plots.HistogramPair:
    assert f.histograms is not None
    before, now = f.histograms
    names, shares = before.names, []
    if len(names) > SHOWN_BINS + 2:  # the categories beyond join the others
        names = [*names[:SHOWN_BINS], *names[-2:]]
    for counts in (before.counts, now.counts):
        shown = len(names) - 2
        kept = [*counts[:shown], np.sum(counts[shown:-1]), counts[-1]]
        shares.append(np.array(kept) / max(float(np.sum(counts)), 1.0))
    return plots.HistogramPair(f"{f.name}   PSI {f.drift.psi:.3f}", names, *shares)


def _shares(f: FeatureSummary) -> list[str]:
    return [_decimal(f.weight_norm), _percent(f.coverage), _percent(f.missing)]


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "–"


def _decimal(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _bar(value: float, most: float) -> str:
    return "█" * round(12 * value / most) if value > 0 and most > 0 else ""
