"""The lift table: the examples from the highest to the lowest score, in tenths."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from twml_ops.analysis.scoring import Scores


class LiftRow(NamedTuple):
    """One row of the table.

    Attributes:
        examples: how many.
        least: the lowest prediction.
        predicted: the mean prediction.
        observed: the share of positives.
        lift: that share over the share in all examples; NaN if there are no positives at all.
        captured: the share of all positives that is in this row or above; NaN likewise.
    """

    examples: int
    least: float
    predicted: float
    observed: float
    lift: float
    captured: float


def lift_table(scores: Scores, rows: int = 10) -> list[LiftRow]:
    """Cuts the examples, the highest prediction first, into rows of the same size, but for one.

    Equal predictions share their positives evenly, so the table does not depend on the order of
    the examples, and a constant prediction has lift 1 everywhere. With fewer examples than rows
    there are as many rows as examples.
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
        known = rate > 0
        table.append(
            LiftRow(
                len(part),
                float(p[part[-1]]),
                float(p[part].mean()),
                observed,
                observed / rate if known else np.nan,
                captured / (rate * n) if known else np.nan,
            )
        )
    return table
