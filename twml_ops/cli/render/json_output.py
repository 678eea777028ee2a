"""Strict JSON, which has no NaN and no infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def to_finite(value: Any) -> Any:
    """`value` with None in place of each NaN and infinity, at any depth."""
    if isinstance(value, dict):
        return {k: to_finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any) -> str:
    """`value` as indented JSON, NaN and infinity as null."""
    return json.dumps(to_finite(value), indent=2, allow_nan=False)


def print_json(value: Any) -> None:
    """Prints `value` on the standard output; see `to_json`."""
    print(to_json(value))
