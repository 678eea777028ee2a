"""The lift table: the positive rate in each tenth of the examples, ordered by score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from twml_ops.analysis.scoring import Scores


class LiftRow(NamedTuple):
    """One row of a lift table.

    Attributes:
        examples: number of examples in the row.
        least: lowest prediction.
        predicted: mean prediction.
        observed: share of positives.
        lift: `observed` divided by the share of positives of all examples; NaN without positives.
        captured: share of all positives that are in this row or above (cumulative gain); NaN
            without positives.
    """

    examples: int
    least: float
    predicted: float
    observed: float
    lift: float
    captured: float


def lift_table(scores: Scores, rows: int = 10) -> list[LiftRow]:
    """Computes the lift of the examples in descending order of their predictions.

    The lift of a row is (positives in the row / examples in the row) / (positives / examples); see
    Piatetsky-Shapiro and Masand, "Estimating Campaign Benefits and Modeling Lift", KDD 1999.
    Examples with equal predictions count with their mean label, so the table does not depend on the
    order of the examples, and a constant prediction has lift 1 in all rows.

    Args:
        scores: labels and predictions.
        rows: number of rows; their sizes differ by at most one example.

    Returns:
        The rows, highest predictions first; as many as there are examples if these are fewer.
    """
    n = len(scores.labels)
    order = np.argsort(-scores.predictions, kind="stable")
    p = scores.predictions[order].astype(np.float64)
    tie = np.cumsum(np.append(False, p[1:] != p[:-1])[:n])
    y = (np.bincount(tie, scores.labels[order]) / np.bincount(tie))[tie]
    rate = y.mean() if n else np.nan
    table, captured = [], 0.0
    for part in np.array_split(np.arange(n), rows):
        if not len(part):
            continue
        captured += y[part].sum()
        observed = float(y[part].mean())
        has_positives = rate > 0
        table.append(
            LiftRow(
                len(part),
                float(p[part[-1]]),
                float(p[part].mean()),
                observed,
                observed / rate if has_positives else np.nan,
                captured / (rate * n) if has_positives else np.nan,
            )
        )
    return table
