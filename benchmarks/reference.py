"""A reference step in float64 with SciPy; only contenders that reproduce it are timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.contender import PreparedContender
from benchmarks.workload import Batch, Case

LEARNING_RATE = 0.01
INITIAL_ACCUMULATOR = 0.1
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
TOLERANCE = 1e-3  # relative to the norm of the update, because float32 rounds the weights


def _sgd(g: np.ndarray) -> np.ndarray:
    return g


def _adagrad(g: np.ndarray) -> np.ndarray:
    return g / np.sqrt(INITIAL_ACCUMULATOR + g**2 + EPSILON)


def _rowwise_adagrad(g: np.ndarray) -> np.ndarray:
    return g / np.sqrt(INITIAL_ACCUMULATOR + np.mean(g**2, axis=1, keepdims=True) + EPSILON)


def _lazy_adam(g: np.ndarray) -> np.ndarray:
    return g / (np.abs(g) + EPSILON / np.sqrt(1 - BETA_2))


FIRST_STEPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "lazy_adam": _lazy_adam,
}


def check(prepared: PreparedContender, case: Case, rule: str | None) -> str:
    """Runs a contender that has not run yet on the first batch, and compares the result.

    Args:
        prepared: the prepared contender.
        case: the case with which it was prepared.
        rule: the optimizer; None to compare only the output.

    Returns:
        A message that says what is wrong, or "".
    """
    batch = case.batches[0]
    ids, matrix = _local(batch)
    before = case.table[ids].astype(np.float64)
    output = np.asarray(prepared.run(0))
    error = _relative(output, matrix @ before)
    if not error < TOLERANCE:
        return f"wrong output (off by {error:.0%})"
    if rule is None:
        return ""
    after = prepared.table()
    update = -LEARNING_RATE * FIRST_STEPS[rule](matrix.T @ case.grad_output)
    error = _relative(after[ids] - before, update)
    if not error < TOLERANCE:
        return f"wrong update (off by {error:.0%})"
    changed = np.setdiff1d(np.flatnonzero(_rows_differ(after, case.table)), ids)
    return f"{len(changed)} untouched rows changed" if len(changed) else ""


def _local(batch: Batch) -> tuple[np.ndarray, csr_matrix]:
    """The distinct ids, and the batch as a matrix with one column per distinct id."""
    ids, columns = np.unique(batch.ids, return_inverse=True)
    values = batch.values.astype(np.float64)
    shape = (batch.num_rows, len(ids))
    return ids, csr_matrix((values, columns, batch.row_splits), shape=shape)


def _relative(got: np.ndarray, expected: np.ndarray) -> float:
    if got.shape != expected.shape:
        return float("inf")
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def _rows_differ(a: np.ndarray, b: np.ndarray, chunk: int = 2**16) -> np.ndarray:
    parts = [np.any(a[i : i + chunk] != b[i : i + chunk], axis=1) for i in range(0, len(a), chunk)]
    return np.concatenate(parts)
