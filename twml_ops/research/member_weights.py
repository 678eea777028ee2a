"""Weights of the members of an ensemble, from their predictions of validation data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_CLIP = 1e-7


def log_loss_weights(probabilities: Any, labels: Any, iterations: int = 500) -> Array:
    """The weights of the mean probability with the lowest log loss.

    The mean is a mixture of the members, whose log loss is convex in the weights. The
    expectation-maximization algorithm lowers it in each iteration and keeps the weights positive
    with sum 1 (Dempster et al. 1977).

    Args:
        probabilities: [members, R], predictions of R examples.
        labels: [R], 0 or 1.
        iterations: the iterations of the algorithm, positive.

    Returns:
        float64 [members].

    Raises:
        ValueError: the shapes do not fit.
    """
    likelihoods = _likelihoods(probabilities, labels)
    weights = np.full(len(likelihoods), 1 / len(likelihoods))
    for _ in range(iterations):
        shares = weights[:, None] * likelihoods
        weights = (shares / shares.sum(axis=0)).mean(axis=1)
    return weights


def greedy_weights(probabilities: Any, labels: Any, rounds: int = 20) -> Array:
    """Adds in each round the member that lowers the log loss of the mean most, with replacement.

    Caruana et al. 2004, "Ensemble Selection from Libraries of Models". The round with the lowest
    log loss counts.

    Args:
        probabilities: [members, R], predictions of R examples.
        labels: [R], 0 or 1.
        rounds: number of rounds, positive.

    Returns:
        float64 [members]: the share of the rounds in which each was added; 0 for some.

    Raises:
        ValueError: the shapes do not fit.
    """
    likelihoods = _likelihoods(probabilities, labels)
    counts, best = np.zeros(len(likelihoods)), (np.inf, np.zeros(len(likelihoods)))
    total = np.zeros(likelihoods.shape[1])
    for done in range(1, rounds + 1):
        losses = -np.log((total + likelihoods) / done).mean(axis=1)
        chosen = int(np.argmin(losses))
        counts[chosen] += 1
        total += likelihoods[chosen]
        if losses[chosen] < best[0]:
            best = float(losses[chosen]), counts / done
    return best[1]


def _likelihoods(probabilities: Any, labels: Any) -> Array:
    """The probability of the label that each example has, [members, R]."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.float64).reshape(-1)
    if p.ndim != 2 or 0 in p.shape or p.shape[1] != len(y):
        raise ValueError(
            f"probabilities must be [members, R] for R labels, got {p.shape} for {len(y)} labels"
        )
    p = np.clip(p, _CLIP, 1 - _CLIP)
    return np.asarray(np.where(y > 0.5, p, 1 - p))
