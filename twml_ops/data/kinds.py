"""What the types of Arrow columns can be used for."""

from __future__ import annotations

import pyarrow as pa

from twml_ops._arrow_columns import is_day, is_list, is_number, is_token
from twml_ops.data.schema import SPARSE_IDS, SPARSE_VALUES


def unusable(name: str, kind: pa.DataType) -> str | None:
    """Why a column of this type cannot be a feature; None if it can."""
    if is_number(kind) or is_token(kind):
        return None
    if is_list(kind):
        if is_token(kind.value_type):
            return None
        if name in (SPARSE_IDS, SPARSE_VALUES) and is_number(kind.value_type):
            return None
        return f"{kind}: only lists of text or integers can be a feature"
    if is_day(kind):
        return f"{kind}: only parts of it, such as the hour, can be features"
    return f"{kind}: only numbers, text, bools and lists of them can be features"
