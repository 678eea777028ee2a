"""How far a feature has moved between two data sets: the population stability index."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BINS = 10  # of a continuous feature
CATEGORIES = 50  # the most frequent ones have a bin each
MODERATE, STRONG = 0.1, 0.25


class Drift(NamedTuple):
    """The index of one feature.

    Attributes:
        psi: 0 if nothing moved; beyond MODERATE something did, beyond STRONG much, by the rule of
            thumb of credit scoring (Siddiqi, "Credit Risk Scorecards", 2006).
        chance: what samples of these sizes from one and the same population give on average.
    """

    psi: float
    chance: float


def population_stability(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Drift:
    """Σ (a − b) ln(a / b) over bins, b and a the shares of the examples before and after.

    Half an example is added to each bin of either, so that an empty bin costs what it should and
    not infinity. Bins that are empty in both do not count.

    Args:
        before: counts [bins].
        after: counts [bins].

    Returns:
        NaN for both numbers where a data set has no examples.
    """
    if not before.sum() or not after.sum():
        return Drift(np.nan, np.nan)
    used = (before > 0) | (after > 0)
    b, a = before[used] + 0.5, after[used] + 0.5
    # Var(ln a/b) is about 1/(n p) + 1/(m p) in a bin of share p, so the sum over bins is this.
    chance = (len(b) - 1) * (1 / before.sum() + 1 / after.sum())
    b, a = b / b.sum(), a / a.sum()
    return Drift(float(np.sum((a - b) * np.log(a / b))), float(chance))
