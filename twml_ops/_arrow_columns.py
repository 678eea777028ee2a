"""Arrow columns as numbers and as the text of categories. It does not import TensorFlow."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SEPARATOR = "|"  # of lists in a text, where nothing else is said
LIST = "[]"
"""The separator of texts that are lists in brackets or braces: of Python, JSON and Postgres."""
T = TypeVar("T", pa.Table, pa.RecordBatch, pa.Schema)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type, without views of text and without run-length encoding."""
    types = pa.types
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.large_list if types.is_large_list(kind) else pa.list_
        return make(plain_type(kind.value_type))
    views = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    if str(kind) in views:
        return views[str(kind)]
    if types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    return kind


def with_plain_types(rows: T) -> T:
    """A table, record batch or schema in which each type is the `plain_type`."""
    fields = rows if isinstance(rows, pa.Schema) else rows.schema
    plain = pa.schema([field.with_type(plain_type(field.type)) for field in fields])
    if plain.equals(fields):
        return rows
    return plain if isinstance(rows, pa.Schema) else rows.cast(plain)


def is_number(kind: pa.DataType) -> bool:
    """Integers, floats and decimals."""
    types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in types)


def is_list(kind: pa.DataType) -> bool:
    """Lists of either offset type, and of fixed size."""
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in types)


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


def decoded(column: pa.Array) -> pa.Array:
    """A column without a dictionary of anything else than text."""
    kind = column.type
    if pa.types.is_dictionary(kind) and is_typed_kind(kind):
        return column.dictionary_decode()
    return column


def as_tokens(column: pa.Array) -> pa.Array:
    """Categories as text; integers and bools become their text."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return column


def floats(column: pa.Array) -> np.ndarray:
    """float64 [R], NaN where missing."""
    if column.type == pa.bool_():
        column = column.cast(pa.int8())
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def list_lengths(lists: pa.Array) -> np.ndarray:
    """int64 [R]; a null is an empty list."""
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy()).astype(np.int64)


def integer_texts(numbers: np.ndarray) -> tuple[pa.Array, int | None]:
    """Floats that are integers, as pandas makes them of integers with missing ones, as text.

    It is the text `3.0` that pandas writes to a CSV file.

    Args:
        numbers: float64, NaN where missing.

    Returns:
        (the texts, the position of the first number that keeps no integer, if there is one).
    """
    bad = ~(np.isnan(numbers) | ((np.trunc(numbers) == numbers) & (np.abs(numbers) <= 2**53)))
    if bad.any():
        return pa.nulls(len(numbers), pa.string()), int(bad.argmax())
    integers = pa.array(np.nan_to_num(numbers).astype(np.int64), mask=np.isnan(numbers))
    return pc.binary_join_element_wise(integers.cast(pa.string()), ".0", ""), None


def time_texts(column: pa.Array) -> pa.Array:
    """Times as texts: seconds of timestamps and dates in ISO form, integers as they are.

    Numbers of a float64 lose their fraction, downwards.

    Args:
        column: timestamps, dates, integers, float64, decimals, text, or a dictionary of them.

    Returns:
        Strings, binary or a dictionary of them, null where missing.

    Raises:
        ValueError: the column has another type, or a number that is not finite.
    """
    kind = column.type
    if pa.types.is_dictionary(kind) and not (is_token(kind) and not is_typed_kind(kind)):
        column, kind = column.dictionary_decode(), kind.value_type
    if is_day(kind):
        factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.get(getattr(kind, "unit", ""), 1)
        if pa.types.is_date64(kind):
            factor = 10**3
        plain = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        numbers = column.cast(plain).cast(pa.int64())
        there = numbers.is_valid().to_numpy(zero_copy_only=False)
        seconds = numbers.fill_null(0).to_numpy(zero_copy_only=False) // factor
        seconds = seconds * 86400 if pa.types.is_date32(kind) else seconds
        times = pa.array(seconds, mask=~there).cast(pa.timestamp("s"))
        return times.cast(pa.string())
    if kind == pa.float64():
        numbers = floats(column)
        there = ~np.isnan(numbers)
        whole = np.floor(np.where(there, numbers, 0))
        bad = ~(np.abs(whole) < 2**63)
        if bad.any():
            raise ValueError(f"expected finite numbers of times, got {numbers[bad][0]}")
        return pa.array(whole.astype(np.int64), mask=~there).cast(pa.string())
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind) or not is_token(kind):
        raise ValueError(
            "expected timestamps, dates, text, integers or float64, of which time features are "
            f"made, got {kind}"
        )
    return as_tokens(column)


def is_day(kind: pa.DataType) -> bool:
    """Timestamps and dates."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def split_lists(texts: pa.Array, separator: str) -> pa.Array:
    """Lists of the texts between separators; null where a text is null.

    Spaces around the texts stay with `SEPARATOR` only, and quotes go with `LIST`.
    """
    if separator == SEPARATOR:
        return pc.split_pattern(texts, separator)
    texts = trimmed(texts)
    if separator == LIST:
        lists = pc.split_pattern(pc.replace_substring_regex(texts, r"^[\[{]|[\]}]$", ""), ",")
        items = pc.ascii_trim_whitespace(lists.flatten())
        items = pc.replace_substring_regex(items, "^(u?'(.*)'|\"(.*)\")$", r"\2\3")
    else:
        lists = pc.split_pattern(texts, separator)
        items = pc.ascii_trim_whitespace(lists.flatten())
    lengths = pc.list_value_length(lists)
    ends = np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int32)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, items, mask=texts.is_null())


def texts_of(tokens: pa.Array) -> pa.Array:
    """Strings of text or bytes; of a dictionary, its entries."""
    if pa.types.is_dictionary(tokens.type):
        tokens = tokens.dictionary
    return tokens.cast(pa.string(), safe=False)


def trimmed(texts: pa.Array) -> pa.Array:
    """Strings without white space around them."""
    return pc.ascii_trim_whitespace(texts_of(texts))
