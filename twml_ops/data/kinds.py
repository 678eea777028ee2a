"""What the types of Arrow columns can be used for."""

from __future__ import annotations

import pyarrow as pa

from twml_ops.data.schema import SPARSE_IDS, SPARSE_VALUES


def is_number(kind: pa.DataType) -> bool:
    """Integers, floats and decimals."""
    types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in types)


def is_list(kind: pa.DataType) -> bool:
    """Lists of either offset type, and of fixed size."""
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in types)


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
        return f"{kind}: it can be the `time` of the examples, but no feature"
    return f"{kind}: only numbers, text, bools and lists of them can be features"


def is_day(kind: pa.DataType) -> bool:
    """Timestamps and dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_token(kind: pa.DataType) -> bool:
    """What can be a category: text, binary, integers, bools, and dictionaries of them."""
    if pa.types.is_dictionary(kind):
        return is_token(kind.value_type)
    types = pa.types
    text = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    others = (types.is_fixed_size_binary, types.is_integer, types.is_boolean, types.is_null)
    return any(test(kind) for test in (*text, *others))


def is_typed_kind(kind: pa.DataType) -> bool:
    """Whether the categories of a column of this type are integers or bools; see `Schema.typed`."""
    if is_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_number(kind) or bool(pa.types.is_boolean(kind))
