"""Checks of constructor arguments that several layers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def check_choice(name: str, got: str, choices: tuple[str, ...]) -> None:
    """Raises `ValueError` unless `got` is one of the choices."""
    if got not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {got!r}")


def check_num_bins(num_bins: Any) -> int | dict[int, int]:
    """Checks a number of bins, or a dict of them by feature, and converts to int."""
    if isinstance(num_bins, Mapping):
        return {int(f): check_positive_integer(f"num_bins[{f}]", n) for f, n in num_bins.items()}
    return check_positive_integer("num_bins", num_bins)


def check_positive_integer(name: str, got: Any) -> int:
    """Checks a positive integer and converts it to int."""
    if isinstance(got, bool) or not isinstance(got, (int, np.integer)) or got < 1:
        raise ValueError(f"{name} must be a positive integer, got {got!r}")
    return int(got)


def check_id_bits(name: str, got: Any) -> int:
    """Checks the number of bits of an id space, 1 to 62, and converts it to int."""
    if isinstance(got, bool) or not isinstance(got, (int, np.integer)) or not 1 <= got <= 62:
        raise ValueError(f"{name} must be an integer in [1, 62], got {got!r}")
    return int(got)


def check_signed(name: str, ids: np.ndarray) -> None:
    """Raises `ValueError` for an id of uint64 that would be negative, and missing, as int64."""
    if ids.dtype == np.uint64 and np.any(ids >= np.uint64(1 << 63)):
        raise ValueError(f"{name} must be below 2^63, got {ids.max()}")


def refuse_constraint(name: str, options: dict[str, Any]) -> None:
    """Removes the constraint of a table from the keyword arguments of a layer.

    Raises:
        ValueError: it is not None. Keras applies constraints to all rows in each step.
    """
    got = options.pop(name, None)
    if got is not None:
        raise ValueError(
            f"{name} must be None, got {got!r}: a constraint would read and write every row of the "
            "table in each step; a regularizer, or weight_decay of the optimizer, acts on the rows "
            "of the batch only"
        )
