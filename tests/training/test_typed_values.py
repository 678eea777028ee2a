"""Values of annotated types, as JSON and as text."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional

import pytest

from twml_ops.training.config import format_value, has_type, parse_value, type_name

VALUES = [
    (int, "64", 64),
    (float, "0.5", 0.5),
    (float, "2", 2.0),
    (bool, "true", True),
    (bool, "False", False),
    (str, "relu", "relu"),
    (int | None, "none", None),
    (int | None, "null", None),
    (int | None, "3", 3),
    (Optional[float], "1e-3", 1e-3),  # noqa: UP045  (a user may write it so)
    (str | None, "none", None),
    (str | int, "3", 3),
    (Literal["sum", "mean"], "mean", "mean"),
    (Literal[1, 2], "2", 2),
    (Sequence[int], "64, 32", [64, 32]),
    (Sequence[int], "", []),
    (tuple[float, ...], "1,2", [1.0, 2.0]),
    (list[str], "a,b", ["a", "b"]),
]


@pytest.mark.parametrize(("expected", "text", "value"), VALUES)
def test_text_is_parsed_as_its_type(expected, text, value):
    parsed = parse_value(text, expected)
    assert parsed == value
    assert type(parsed) is type(value)
    assert has_type(parsed, expected)
    assert parse_value(format_value(parsed), expected) == parsed


@pytest.mark.parametrize(
    ("expected", "text", "message"),
    [
        (int, "6.5", "expected an integer, got '6.5'"),
        (float, "x", "expected a number, got 'x'"),
        (bool, "1", "expected true or false, got '1'"),
        (int | None, "x", "expected an integer or null, got 'x'"),
        (Literal["sum", "mean"], "max", "expected one of sum, mean, got 'max'"),
        (Sequence[int], "1,x", "expected integers separated by commas, got '1,x'"),
    ],
)
def test_text_of_another_type_is_an_error(expected, text, message):
    with pytest.raises(ValueError, match=message):
        parse_value(text, expected)


@pytest.mark.parametrize(
    ("expected", "value", "yes"),
    [
        (int, True, False),
        (bool, True, True),
        (float, 1, True),
        (int, 1.0, False),
        (Sequence[int], [1, 2], True),
        (Sequence[int], [1, "2"], False),
        (Sequence[str], "ab", False),
        (dict[str, Any], {"a": 1}, True),
        (Mapping[str, int], [1], False),
        (Any, object(), True),
    ],
)
def test_values_have_the_types_of_json(expected, value, yes):
    assert has_type(value, expected) is yes


def test_types_have_names():
    assert type_name(dict[str, Any]) == "an object"
    assert type_name(Sequence[float]) == "numbers separated by commas"
