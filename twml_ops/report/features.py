"""The features of a run as a section of the report."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from twml_ops.analysis.explanation import Explanation, FeatureSummary
from twml_ops.analysis.population_stability import MODERATE, STRONG, Drift
from twml_ops.report.page import TOP_FEATURES
from twml_ops.report.plots import HistogramPair, bar_columns, histogram_grid
from twml_ops.report.result_tables import leak_warnings
from twml_ops.training.errors import UserError

DRIFTED = 6
SHOWN_BINS = 12
_DASHED = " Dashed lines: moderate and strong drift."


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """What `twml-ops explain --json` prints."""
    features = []
    for f in explanation.features:
        row = f._asdict()
        row.pop("histograms")
        drift = row.pop("drift")
        features.append({**row, **drift._asdict()})
    return {**explanation._asdict(), "features": features}


def render_features(explanation: Explanation) -> str:
    """The section of the report about the features, HTML."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("twml_ops.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    return env.get_template("features.html.j2").render(
        explanation=explanation,
        rows=[_row(f) for f in explanation.features],
        pictures=_pictures(explanation),
        moderate=MODERATE,
        strong=STRONG,
        warnings=leak_warnings(explanation.leaks, explanation.data),
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
            "image": bar_columns(names, columns, [MODERATE, STRONG]),
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
                "image": histogram_grid([_histogram_pair(f) for f in drifted]),
            }
        )
    return pictures


def _histogram_pair(f: FeatureSummary) -> HistogramPair:
    assert f.histograms is not None
    before, now = f.histograms
    names, shares = before.names, []
    if len(names) > SHOWN_BINS + 2:  # the categories beyond join the others
        names = [*names[:SHOWN_BINS], *names[-2:]]
    for counts in (before.counts, now.counts):
        shown = len(names) - 2
        kept = [*counts[:shown], np.sum(counts[shown:-1]), counts[-1]]
        shares.append(np.array(kept) / max(float(np.sum(counts)), 1.0))
    return HistogramPair(f"{f.name}   PSI {f.drift.psi:.3f}", names, *shares)


def _shares(f: FeatureSummary) -> list[str]:
    return [_decimal(f.weight_norm), _percent(f.coverage), _percent(f.missing)]


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "–"


def _decimal(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def with_section(report: Path, explanation: Explanation) -> str:
    """The content of a report with a section about the features, in place of an existing one.

    Args:
        report: report to read.
        explanation: content of the section.

    Raises:
        UserError: `report` cannot be read or is not a report.
    """
    try:
        html = report.read_text(encoding="utf-8")
    except OSError as e:
        raise UserError(f"{report}: cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise UserError(f"{report}: is not a report of twml-ops: {e}") from e
    start, end = "<!-- twml-ops explain -->", "<!-- /twml-ops explain -->"
    html = re.sub(f"{start}.*?{end}\n?", "", html, flags=re.DOTALL)
    head, closing, tail = html.rpartition("</main>")
    if not closing:
        raise UserError(f"{report}: is not a report of twml-ops")
    section = f"{start}\n{render_features(explanation)}\n{end}\n"
    return head + section + closing + tail
