"""Writes planted data of categories as CSV files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_files(
    folder: Path,
    stem: str,
    columns: Mapping[str, npt.NDArray[Any]],
    labels: npt.NDArray[Any],
    test_share: float,
) -> tuple[Path, Path]:
    """Writes the training data and the test data, which are the last rows.

    Args:
        folder: it is made if it does not exist.
        stem: the files are STEM_train.csv and STEM_test.csv.
        columns: the numbers of the categories by the name of the column, [rows] each.
        labels: 0 or 1, [rows].
        test_share: share of the rows that are test data.

    Returns:
        (path of the training data, path of the test data).
    """
    folder.mkdir(parents=True, exist_ok=True)
    start = round(len(labels) * (1 - test_share))
    paths = folder / f"{stem}_train.csv", folder / f"{stem}_test.csv"
    for path, rows in zip(paths, (slice(start), slice(start, None)), strict=True):
        with path.open("w") as file:
            file.write(",".join(["label", *columns]) + "\n")
            parts = [labels[rows], *(column[rows] for column in columns.values())]
            for label, *values in zip(*parts, strict=True):
                file.write(",".join([str(label), *(f"v{value}" for value in values)]) + "\n")
    return paths


def best_possible(
    labels: npt.NDArray[Any], logits: npt.NDArray[np.float64], test_share: float
) -> str:
    """The metrics of the test rows for the probabilities of which the labels were drawn."""
    from sklearn.metrics import log_loss, roc_auc_score

    start = round(len(labels) * (1 - test_share))
    y, z = labels[start:], logits[start:]
    loss = log_loss(y, 1 / (1 + np.exp(-z)))
    return f"best possible predictions: AUC {roc_auc_score(y, z):.4f}, log loss {loss:.4f}"
