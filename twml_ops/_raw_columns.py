"""Raw columns, NumPy arrays of text and numbers, as the native scorer takes them."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def categories(column: ArrayLike) -> Array:
    """The array of a column or a feature of categories.

    A list keeps its items as they are: NumPy would make the text "nan" of a missing value beside
    texts, and a float of an integer beside one.
    """
    return np.asarray(column, object if isinstance(column, (list, tuple)) else None)


def is_na(value: Any) -> bool:
    """Whether a value is the missing one of nullable types of pandas, which has no truth value."""
    return type(value).__name__ == "NAType"


def numbers_of(name: str, column: Array) -> NDArray[np.float32]:
    """The column as float32; None, NaN and NA of pandas are missing values, which are NaN.

    Args:
        name: name of the column, for messages.
        column: numbers [B].

    Raises:
        ValueError: the column holds no numbers.
    """
    text = column.dtype.kind == "O" and any(isinstance(x, (str, bytes)) for x in column)
    if text or column.dtype.kind not in "Ofiub":
        raise ValueError(f"column {name!r} must hold numbers, got {_kind(column)}")
    if column.dtype.kind == "O":
        column = _object_array([None if is_na(x) else x for x in column])
    try:
        # By way of float64, as the readers do: integers are rounded in the same way.
        numbers = column if column.dtype.kind == "f" else column.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        raise ValueError(f"column {name!r} must hold numbers, got {e}") from e
    with np.errstate(over="ignore"):  # the scorer refuses what is infinite in float32
        return numbers.astype(np.float32)


def times_of(name: str, column: Array) -> Array:
    """The column of times with texts in place of timestamps, dates and floats.

    They are in ISO form, in UTC, or integers; whatever a float64 has after its point is left out,
    downwards. Texts and integers stay as they are.

    Args:
        name: name of the column, for messages.
        column: times [B].

    Raises:
        ValueError: the column holds numbers that are not finite, or floats of less than 64 bits.
    """
    if column.dtype.kind == "M":
        texts = np.datetime_as_string(column.astype("datetime64[s]")).astype(object)
        texts[np.isnat(column)] = None
        return texts
    if column.dtype.kind == "f":
        return _object_array([_time_of_float(name, x) for x in column])
    if column.dtype.kind != "O":
        return column
    return _object_array([_time_of(name, x) for x in column])


def _time_of(name: str, time: Any) -> Any:
    if isinstance(time, (float, np.floating)):
        return _time_of_float(name, time)
    if isinstance(time, np.datetime64):
        return times_of(name, np.array([time]))[0]
    if isinstance(time, datetime.date) and time == time:  # pandas has a NaT
        if isinstance(time, datetime.datetime) and time.tzinfo is not None:
            time = time.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return time.isoformat()
    return None if isinstance(time, datetime.date) else time


def _time_of_float(name: str, number: Any) -> str | None:
    if number != number:
        return None
    if getattr(number, "itemsize", 8) < 8:
        raise ValueError(
            f"column {name!r} must hold times, got a {number.dtype}, which loses seconds"
        )
    if math.isinf(number):
        raise ValueError(f"column {name!r} must hold finite times, got {number}")
    return str(math.floor(number))


def _object_array(items: list[Any]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def strings_of(name: str, column: Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all categories of a column, and the offsets of each, int64 [B + 1].

    Text is encoded as UTF-8; integers and bools are their text. Missing values have no bytes.

    Args:
        name: name of the column, for messages.
        column: text, bytes, integers or bools [B].

    Raises:
        ValueError: the column holds something else.
    """
    data, lengths = _bytes_of(name, column)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return data, offsets


def _bytes_of(name: str, column: Array) -> tuple[Array, Array]:
    """The bytes of all categories and the length of each."""
    if column.dtype.kind == "O":
        tokens = [_bytes_of_one(name, x) for x in column.tolist()]
        data = np.frombuffer(b"".join(tokens), np.uint8)
        return data, np.fromiter(map(len, tokens), np.int64, len(tokens))
    if column.dtype.kind == "b":
        column = np.where(column, b"true", b"false")
    elif column.dtype.kind in "iu":
        column = column.astype("S")
    elif column.dtype.kind == "U":
        column = np.char.encode(column, "utf-8").astype("S")  # NumPy 1 makes floats of no texts
    elif column.dtype.kind == "f" and np.isnan(column).all():  # missing values only, or no items
        column = np.zeros(len(column), "S1")
    if column.dtype.kind != "S":
        raise ValueError(
            f"column {name!r} must hold strings, integers or bools, got {_kind(column)}"
        )
    lengths = np.char.str_len(column).astype(np.int64)
    table = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), column.itemsize)
    return table[np.arange(column.itemsize) < lengths[:, None]], lengths


def _bytes_of_one(name: str, token: Any) -> bytes:
    if isinstance(token, bytes):
        return token
    if is_na(token) or token is None or token != token:  # the NA and the NaN of pandas
        return b""
    if isinstance(token, (bool, np.bool_)):
        return b"true" if token else b"false"
    if isinstance(token, (str, int, np.integer)):
        return str(token).encode()
    raise ValueError(
        f"column {name!r} must hold strings, integers or bools, got {type(token).__name__}"
    )


def _kind(column: Array) -> str:
    return "text" if column.dtype.kind in "OSU" else column.dtype.name
