"""What a model takes, and the arrays of a request made from JSON values and from tensors."""

from __future__ import annotations

import base64
import binascii
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twml_ops.serving.errors import InvalidRequest, TooLarge

FEATURES = "serving_default"
COLUMNS = "raw"

Arrays = dict[str, NDArray[Any]]
_MAX_LISTED = 50  # names in a message
_MAX_RANK = 16
_KINDS: dict[type, str] = {
    **{dict: "an object", list: "a list", str: "a text", bool: "a bool"},
    type(None): "null",
}


@dataclass(frozen=True)
class Input:
    """An array that a model takes.

    Attributes:
        name: its name.
        form: dense, strings, ids, values, row_splits or bag (strings of all rows).
        dtype: float32, int64, bool or string.
        row_splits: name of its row splits; empty if it has none.
        dims: shape of a row; None if it is not known.
    """

    name: str
    form: str
    dtype: str
    row_splits: str
    dims: tuple[int, ...] | None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the whole array, -1 for a number that depends on the request."""
        return None if self.dims is None else (-1, *self.dims)

    @property
    def has_entries(self) -> bool:
        """Whether a row has any number of items."""
        return self.form in ("ids", "values", "bag")


class Signatures:
    """The sets of arrays that a model takes, by the name of the signature.

    Args:
        features: the arrays of the features.
        columns: the raw columns; empty if the model does not take any.
    """

    def __init__(self, features: Sequence[Input], columns: Sequence[Input]) -> None:
        self.by_name = {FEATURES: {i.name: i for i in features}}
        if columns:
            self.by_name[COLUMNS] = {i.name: i for i in columns}
        # The names in a request of arrays, and of rows, from which row splits are made.
        self._names = {
            by_row: {
                key: frozenset(n for n, i in of.items() if not (by_row and i.form == "row_splits"))
                for key, of in self.by_name.items()
            }
            for by_row in (False, True)
        }

    def find(self, names: Set[str], signature: str, *, by_row: bool = False) -> dict[str, Input]:
        """The inputs that a request gives.

        Args:
            names: names of the arrays of the request.
            signature: its name in the request. Without a name, the names of the arrays decide.
            by_row: whether it has rows, and so no row splits.

        Raises:
            InvalidRequest: there is no such signature, or it has other inputs.
        """
        if signature and signature not in self.by_name:
            known = " and ".join(self.by_name)
            raise InvalidRequest(f"signature_name must be {known}, got {signature!r}")
        wanted = self._names[by_row]
        if signature == COLUMNS:
            wanted = {COLUMNS: wanted[COLUMNS]}
        for key, own in wanted.items():
            if names == own:
                return self.by_name[key]
        text = " or ".join(listed(own) for own in wanted.values())
        raise InvalidRequest(f"the inputs must be {text}, got {listed(names)}")


def check_rows(inputs: Mapping[str, Input], arrays: Arrays, max_rows: int) -> int:
    """The number of rows of a request.

    Raises:
        InvalidRequest: an array has no dimension.
        TooLarge: it has more than `max_rows` rows.
    """
    most = 0
    for name, array in arrays.items():
        if array.ndim == 0:
            raise InvalidRequest(f"input {name!r} must have at least 1 dimension, got 0")
        form = inputs[name].form
        if not inputs[name].has_entries:
            most = max(most, array.shape[0] - (form == "row_splits"))
    check_count(most, max_rows)
    return most


def check_count(rows: int, max_rows: int) -> None:
    """Refuses a request of too many rows.

    Raises:
        TooLarge: it has more than `max_rows` rows.
    """
    if rows > max_rows:
        raise TooLarge(f"the request has {rows} rows, at most {max_rows} are allowed")


def columnar(signatures: Signatures, signature: str, given: Any) -> tuple[dict[str, Input], Arrays]:
    """The arrays of the member `inputs` of a JSON body.

    Raises:
        InvalidRequest: the values do not fit the model.
    """
    if not isinstance(given, dict) or _is_bytes(given):
        given = {_only_name(signatures): given}
    inputs = signatures.find(given.keys(), signature)
    return inputs, {name: _array(inputs[name], value) for name, value in given.items()}


def rows(signatures: Signatures, signature: str, given: Any) -> tuple[dict[str, Input], Arrays]:
    """The arrays of the member `instances` of a JSON body, a list with one item for each row.

    An item is an object with a value for each input, but none for row splits, which are made from
    the lengths of the lists that a row has for ids, values and bags. If the model takes nothing but
    one such input, an item may be the value itself.

    Raises:
        InvalidRequest: the values do not fit the model.
    """
    if not isinstance(given, list):
        raise InvalidRequest(f"instances must be a list, got {_kind(given)}")
    if not given:
        inputs = signatures.by_name[FEATURES]
        return inputs, _empty(inputs)
    if not isinstance(given[0], dict) or _is_bytes(given[0]):
        name = _only_name(signatures)
        inputs = signatures.find({name}, signature, by_row=True)
        columns = {name: given}
    else:
        names = given[0].keys()
        inputs = signatures.find(names, signature, by_row=True)
        for i, row in enumerate(given):
            if not isinstance(row, dict) or row.keys() != names:
                raise InvalidRequest(
                    f"instances[{i}] must have the names of instances[0], {listed(names)}"
                )
        columns = {name: [row[name] for row in given] for name in names}
    arrays: Arrays = {}
    splits: Arrays = {}
    for name, values in columns.items():
        if not inputs[name].has_entries:
            arrays[name] = _array(inputs[name], values)
            continue
        lengths = np.zeros(len(values) + 1, np.int64)
        entries: list[Any] = []
        for i, value in enumerate(values):
            if not isinstance(value, list):
                raise InvalidRequest(f"instances[{i}].{name} must be a list, got {_kind(value)}")
            entries += value
            lengths[i + 1] = len(value)
        arrays[name] = _array(inputs[name], entries)
        own = np.cumsum(lengths)
        key = inputs[name].row_splits
        if key and not np.array_equal(splits.setdefault(key, own), own):
            others = sorted(n for n in columns if inputs[n].row_splits == key)
            raise InvalidRequest(f"the lists {others} of an instance must have the same length")
    zeros = np.zeros(len(given) + 1, np.int64)  # of row splits that the model does not use
    for name, one in inputs.items():
        if one.form == "row_splits":
            arrays[name] = splits.get(name, zeros)
    return inputs, arrays


def _empty(inputs: Mapping[str, Input]) -> Arrays:
    return {
        name: np.zeros(1, np.int64)
        if one.form == "row_splits"
        else np.zeros((0, *(one.dims or ())), "O" if one.dtype == "string" else one.dtype)
        for name, one in inputs.items()
    }


def _only_name(signatures: Signatures) -> str:
    for inputs in signatures.by_name.values():
        names = [n for n, i in inputs.items() if i.form != "row_splits"]
        if len(names) == 1:
            return names[0]
    names = sorted(signatures.by_name[FEATURES])
    raise InvalidRequest(f"an object with the inputs {names} is required")


def listed(names: Set[str]) -> str:
    """The names in order; of many the first ones and their number."""
    if len(names) <= _MAX_LISTED:
        return str(sorted(names))
    first = ", ".join(map(repr, heapq.nsmallest(_MAX_LISTED, names)))
    return f"[{first}, ...] ({len(names)} names)"


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def _is_bytes(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def _text(name: str, value: Any) -> Any:
    """A category: text, bytes, an integer, a bool or None."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as e:  # half of a surrogate pair
            raise InvalidRequest(f"input {name!r} must hold Unicode text: {e}") from e
    if _is_bytes(value) and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as e:
            raise InvalidRequest(f"input {name!r} has bytes that are not base64: {e}") from e
    raise InvalidRequest(
        f'input {name!r} must hold texts, {{"b64": ...}}, integers, bools or null, got '
        f"{_kind(value)}"
    )


def _row_of_texts(one: Input, row: Any, width: int) -> list[Any]:
    """The texts of a row, which may be a single text if the row has one."""
    if width == 1 and not isinstance(row, list):
        return [row]
    if isinstance(row, list) and len(row) == width and len(one.dims or ()) == 1:
        return row
    raise InvalidRequest(f"input {one.name!r} must have a list of {width} texts for each row")


def _array(one: Input, value: Any) -> NDArray[Any]:
    """The array of a JSON value."""
    if not isinstance(value, list):
        raise InvalidRequest(f"input {one.name!r} must be a list, got {_kind(value)}")
    if one.dtype == "string":
        width = math.prod(one.dims or ())
        rows = value
        if one.dims:  # a list for each row
            rows = [x for row in value for x in _row_of_texts(one, row, width)]
        texts = np.empty(len(rows), object)
        texts[:] = [_text(one.name, x) for x in rows]
        return texts.reshape(-1, *(one.dims or ())) if width else texts
    numbers, shape = value, None
    if value and isinstance(value[0], list):
        numbers, shape = _flat(one, value)
    if not numbers:
        return np.zeros(shape or (0, *(one.dims or ())), one.dtype)
    # Kinds are checked before NumPy sees them: it would make texts of the longest length of numbers
    # beside a text, and 1 of true beside an integer.
    dtype = _dtype_of(one, set(map(type, numbers)))
    try:
        array = np.array(numbers, dtype)
    except OverflowError as e:  # an integer beyond 64 bits
        raise InvalidRequest(f"input {one.name!r} must hold numbers of at most 64 bits") from e
    return array if shape is None else array.reshape(shape)


def _flat(one: Input, value: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """The items of nested lists in one list, and the shape."""
    shape = [len(value)]
    while value and isinstance(value[0], list):
        lengths = {len(x) if isinstance(x, list) else -1 for x in value}
        if len(lengths) > 1 or len(shape) >= _MAX_RANK:
            raise InvalidRequest(f"input {one.name!r} must be a regular array of numbers")
        shape.append(len(value[0]))
        value = list(itertools.chain.from_iterable(value))
    return value, tuple(shape)


def _dtype_of(one: Input, types: set[type]) -> Any:
    """The type of an array with items of these types, which converts none to another value."""
    if one.dtype == "float32":
        known = types - {type(None)} if one.form == "dense" else types
        if types == {bool}:
            return np.bool_
        if known <= {int, float} or known == {bool}:
            return np.float64
    elif types == {int}:
        return np.int64
    elif types == {bool} and one.dtype == "bool":
        return np.bool_
    names = ", ".join(sorted(t.__name__ for t in types))
    raise InvalidRequest(f"input {one.name!r} must hold numbers of type {one.dtype}, got {names}")
