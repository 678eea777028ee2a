"""The population stability index: how far a feature has drifted between two data sets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BINS = 10  # of a continuous feature
CATEGORIES = 50  # the most frequent categories have a bin each
MODERATE, STRONG = 0.1, 0.25


class Drift(NamedTuple):
    """The population stability index of a feature.

    Attributes:
        psi: the index; 0 if the histograms are equal. By a rule of thumb of credit scoring
            (Siddiqi, "Credit Risk Scorecards", 2006) a feature has drifted above 0.1, and has
            drifted strongly above 0.25.
        psi_by_chance: expected index of two samples of these sizes from the same population.
    """

    psi: float
    psi_by_chance: float


def population_stability(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Drift:
    """Computes the population stability index of two histograms with the same bins.

    The index is Σ (a − b) ln(a / b) over the bins, where b and a are the shares of the examples
    before and after. It is the symmetric Kullback–Leibler (Jeffreys) divergence. Half an example is
    added to each bin of both histograms, so that an empty bin does not make the index infinite.
    Bins that are empty in both histograms are left out. For two samples of n and m examples from
    one population the expected index is about (bins − 1) (1/n + 1/m).

    Args:
        before: counts [bins].
        after: counts [bins].

    Returns:
        The index; NaN where one of the histograms has no examples.
    """
    if not before.sum() or not after.sum():
        return Drift(np.nan, np.nan)
    used = (before > 0) | (after > 0)
    b, a = before[used] + 0.5, after[used] + 0.5
    # In a bin of share p, Var(ln a/b) is about 1/(n p) + 1/(m p). This is the sum over the bins.
    by_chance = (len(b) - 1) * (1 / before.sum() + 1 / after.sum())
    b, a = b / b.sum(), a / a.sum()
    return Drift(float(np.sum((a - b) * np.log(a / b))), float(by_chance))
