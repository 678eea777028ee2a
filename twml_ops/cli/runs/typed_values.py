"""Values of annotated types, as JSON holds them and as text on the command line."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import Any, Literal

_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    types.NoneType: "null",
}
_PLURALS: dict[Any, str] = {str: "strings", int: "integers", float: "numbers"}


def type_name(expected: Any) -> str:
    """A type in words."""
    if typing.get_origin(expected) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(expected)))}"
    if _is_union(expected):
        return " or ".join(map(type_name, typing.get_args(expected)))
    if _is_sequence(expected):
        return f"{_PLURALS.get(_item(expected), 'values')} separated by commas"
    if _is_mapping(expected):
        return "an object"
    return _NAMES.get(expected, getattr(expected, "__name__", str(expected)))


def has_type(value: Any, expected: Any) -> bool:
    """Whether a JSON value is of a type; an integer counts as a float, a list as any sequence."""
    if expected is Any:
        return True
    if typing.get_origin(expected) is Literal:
        return value in typing.get_args(expected)
    if _is_union(expected):
        return any(has_type(value, option) for option in typing.get_args(expected))
    if _is_sequence(expected):
        return isinstance(value, (list, tuple)) and all(has_type(v, _item(expected)) for v in value)
    if _is_mapping(expected):
        return isinstance(value, collections.abc.Mapping)
    if isinstance(value, bool):
        return expected is bool
    if expected is float:
        return isinstance(value, (int, float))
    return isinstance(value, expected) if isinstance(expected, type) else True


def parse_value(text: str, expected: Any) -> Any:
    """The value that a text stands for; sequences become lists, as in JSON.

    Raises:
        ValueError: the text is not of the type.
    """
    wrong = ValueError(f"expected {type_name(expected)}, got {text!r}")
    if _is_union(expected):
        options = typing.get_args(expected)
        # Null before sequences of strings, which any text is; strings last.
        for option in sorted(options, key=lambda t: (t is str, t is not types.NoneType)):
            try:
                return parse_value(text, option)
            except ValueError:
                continue
        raise wrong
    if typing.get_origin(expected) is Literal:
        for value in typing.get_args(expected):
            if text == str(value):
                return value
        raise wrong
    if _is_sequence(expected):
        items = (item.strip() for item in text.split(","))
        try:
            return [parse_value(item, _item(expected)) for item in items if item]
        except ValueError:
            raise wrong from None
    if expected is types.NoneType:
        if text.lower() not in ("null", "none"):
            raise wrong
        return None
    if expected is bool:
        if text.lower() not in ("true", "false"):
            raise wrong
        return text.lower() == "true"
    if expected in (int, float):
        try:
            return expected(text)
        except ValueError:
            raise wrong from None
    return text


def format_value(value: Any) -> str:
    """A value as text that `parse_value` reads."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(format_value, value))
    return str(value)


def _is_union(expected: Any) -> bool:
    return typing.get_origin(expected) in (types.UnionType, typing.Union)


def _is_sequence(expected: Any) -> bool:
    origin = typing.get_origin(expected) or expected
    return origin in (list, tuple, collections.abc.Sequence)


def _is_mapping(expected: Any) -> bool:
    return (typing.get_origin(expected) or expected) in (dict, collections.abc.Mapping)


def _item(expected: Any) -> Any:
    """The type of the items of a sequence."""
    return (*typing.get_args(expected), str)[0]
