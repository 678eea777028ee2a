"""Guesses the kinds of columns without a schema from their values, and the messages about it.

Integers are numbers, unless a float32 would lose what tells them apart: leading zeros, or digits
behind the first 24 bits. Such columns are categories. A column that could be numbers or ids stays
one of numbers, with a warning.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops._category_hash import NULLS
from twml_ops.data.errors import DataWarning, quote

NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_INTEGER = r"^[-+]?[0-9]+$"
_WHOLE = r"^[-+]?[0-9]+(\.0*)?$"
_LEADING_ZERO = r"^[-+]?0[0-9]"
_TYPED = r"^([-+]?(0|[1-9][0-9]*)(\.0*)?|True|TRUE|true|False|FALSE|false)$"
_ID_NAME = re.compile(r"ids?$", re.IGNORECASE)
_MANY = 100  # different values
_EXACT = 1 << 24  # a float32 keeps the integers up to this one
_MOSTLY = 0.5  # share of numbers in a column that was perhaps meant to be one of numbers


class Guess(NamedTuple):
    """The evidence in the values of a column.

    Attributes:
        number: whether the column is one of numbers; otherwise of categories.
        typed: whether all values are integers or bools.
        why: why a column with numbers is one of categories; "" if there is nothing to say.
        ids: what makes a column of numbers look like one of ids; "" if it does not.
    """

    number: bool
    typed: bool = False
    why: str = ""
    ids: str = ""


def guess_texts(name: str, texts: pa.Array) -> Guess | None:
    """The guess for a column of texts; None if it has no values.

    Args:
        name: the name of the column.
        texts: binary or strings [R], null where a field is empty.
    """
    values = _without_nulls(_trimmed(pc.unique(texts.drop_null())))
    if not len(values):
        return None
    typed = is_typed(values)
    numbers = pc.match_substring_regex(values, NUMBER)
    if not pc.all(numbers).as_py():
        share = pc.mean(numbers.cast(pa.int8())).as_py()
        first = values.filter(pc.invert(numbers))[0].as_py()
        mixed = share >= _MOSTLY and len(values) > 2
        return Guess(
            False, typed, f"it has the text {quote(first)} beside numbers" if mixed else ""
        )
    whole = pc.match_substring_regex(values, _WHOLE)
    if not pc.all(whole).as_py():
        return Guess(True)
    zeros = values.filter(pc.match_substring_regex(values, _LEADING_ZERO))
    if len(zeros):
        why = f"as numbers, {quote(zeros[0].as_py())} would lose its leading zeros"
        return Guess(False, typed, why)
    integers = pc.all(pc.match_substring_regex(values, _INTEGER)).as_py()
    numbers = _plain(values).cast(pa.float64()).to_numpy(zero_copy_only=False)
    return _guess_whole(name, values, numbers, ~are_lossy(values), integers)


def guess_numbers(name: str, numbers: pa.Array) -> Guess:
    """The guess for a column of numbers, null where a number is missing."""
    integers = pa.types.is_integer(numbers.type)
    values = pc.unique(_without_halves(numbers.drop_null()))
    if pa.types.is_decimal(numbers.type):  # of scale 0: the integers of Spark and of databases
        integers = numbers.type.scale <= 0
    elif not integers:
        values = values.filter(pc.is_finite(values))
    array = _array(values)
    if not len(values) or not (integers or (np.trunc(array) == array).all()):
        return Guess(True)
    return _guess_whole(name, values, array, _are_kept(values, array), integers)


def _guess_whole(
    name: str, values: pa.Array, numbers: np.ndarray, exact: np.ndarray, integers: bool
) -> Guess:
    """The guess for different numbers without fractions, which are integers or were floats."""
    inexact = np.flatnonzero(~exact)
    if inexact.size:
        got = values[int(inexact[0])].as_py()
        if integers:
            return Guess(False, True, f"as a number, {got} would be rounded")
        return Guess(True, ids=f"{got} is rounded")
    if len(values) >= _MANY and integers and numbers.min() >= 0:
        return Guess(True, ids=f"{len(values):,} different integers")
    if _ID_NAME.search(name) and len(values) > 2:
        return Guess(True, ids="its name")
    return Guess(True)


def is_exact(numbers: np.ndarray) -> np.ndarray:
    """Whether a float32 keeps each integer, or float without a fraction; True for other floats."""
    if numbers.dtype.kind in "iu":
        rounded = numbers.astype(np.float32)
        fits = np.abs(rounded) < 2.0 ** (63 + (numbers.dtype.kind == "u"))
        return fits & (np.where(fits, rounded, 0).astype(numbers.dtype) == numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        same = numbers.astype(np.float32).astype(np.float64) == numbers
        return same | (np.trunc(numbers) != numbers) | ~np.isfinite(numbers)


def first_rounded(numbers: pa.Array) -> int | None:
    """The first row whose integer, or float or decimal without a fraction, a float32 rounds."""
    if numbers.null_count == len(numbers):
        return None
    if pa.types.is_integer(numbers.type):
        numbers = numbers.fill_null(0)
    array = _array(numbers)
    # The others are exact: this is one pass over most columns.
    large = np.flatnonzero((array > _EXACT) | (array < -_EXACT))
    rounded = large[~_are_kept(numbers, array[large])]
    return int(rounded[0]) if rounded.size else None


def _are_kept(numbers: pa.Array, array: np.ndarray) -> np.ndarray:
    """`is_exact` of some of the numbers; the float64 of a long decimal is another number."""
    exact = is_exact(array)
    return exact & (np.abs(array) <= 2**53) if pa.types.is_decimal(numbers.type) else exact


def _without_halves(numbers: pa.Array) -> pa.Array:
    """Halves as float32: Arrow and NumPy compare few of their kinds."""
    return numbers.cast(pa.float32()) if pa.types.is_float16(numbers.type) else numbers


def _array(numbers: pa.Array) -> np.ndarray:
    """The numbers for NumPy, which has no decimals."""
    if pa.types.is_decimal(numbers.type):
        numbers = numbers.cast(pa.float64())
    return np.asarray(_without_halves(numbers).to_numpy(zero_copy_only=False))


def is_typed(tokens: pa.Array) -> bool:
    """Whether categories are all integers without leading zeros, or bools; see `Schema.typed`."""
    texts = _without_nulls(_texts(tokens.drop_null()))
    return len(texts) > 0 and bool(pc.all(pc.match_substring_regex(texts, _TYPED)).as_py())


def numbers_of_texts(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """float64 [R], NaN where a text is null, and whether each text is none or a number."""
    texts = _trimmed(texts)
    null = pc.or_kleene(texts.is_null(), pc.is_in(texts, value_set=pa.array(("", *NULLS))))
    good = pc.or_(null.fill_null(True), pc.match_substring_regex(texts, NUMBER).fill_null(True))
    kept = pc.if_else(pc.and_(good, pc.invert(null)), texts, pa.scalar(None, texts.type))
    numbers = _plain(kept).cast(pa.float64())
    return numbers.to_numpy(zero_copy_only=False), good.to_numpy(zero_copy_only=False)


def numbers_of_labels(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Reads numbers as `numbers_of_texts` does, where yes and true are 1, no and false are 0, in
    any case.
    """
    lower = pc.ascii_lower(_trimmed(texts))
    for number, words in (("1", ("yes", "true")), ("0", ("no", "false"))):
        lower = pc.if_else(pc.is_in(lower, value_set=pa.array(words)), number, lower)
    return numbers_of_texts(lower)


def _plain(numbers: pa.Array) -> pa.Array:
    """Texts of numbers without the sign that Arrow does not read."""
    return pc.replace_substring_regex(numbers, r"^\+", "")


def are_lossy(texts: pa.Array) -> np.ndarray:
    """Whether each text is an integer that could be an id which a float32 does not keep: bool [R].

    It has leading zeros, more than the 15 digits that a float64 keeps, or is rounded.
    """
    texts = _trimmed(texts).fill_null("")
    whole = pc.match_substring_regex(texts, _WHOLE)
    digits = pc.replace_substring_regex(_plain(texts), r"^-|\.0*$", "")
    numbers = pc.if_else(whole, digits, pa.scalar(None, digits.type)).cast(pa.float64())
    marked = pc.or_(
        pc.match_substring_regex(texts, _LEADING_ZERO), pc.greater(pc.binary_length(digits), 15)
    )
    marked, whole = (x.to_numpy(zero_copy_only=False) for x in (marked, whole))
    return whole & (marked | ~is_exact(numbers.to_numpy(zero_copy_only=False)))


def _without_nulls(texts: pa.Array) -> pa.Array:
    return texts.filter(pc.invert(pc.is_in(texts, value_set=pa.array(("", *NULLS)))))


def _texts(tokens: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(tokens.type):
        tokens = tokens.dictionary
    return tokens.cast(pa.string(), safe=False)


def _trimmed(texts: pa.Array) -> pa.Array:
    return pc.ascii_trim_whitespace(_texts(texts))


def warn(source: str, guesses: Mapping[str, Guess]) -> None:
    """Warns of the kinds of columns that may be other than users expect.

    Args:
        source: its name.
        guesses: name of a column → the guess.
    """
    for name, guess in guesses.items():
        if guess.why:
            say(
                f"{source}: column {name} is read as categories: {guess.why}",
                [name],
                "continuous",
            )
    names = [name for name, guess in guesses.items() if guess.ids]
    if names:
        found = ", ".join(f"{name} ({guesses[name].ids})" for name in names)
        say(f"{source}: columns that look like ids are read as numbers: {found}", names)


def say(message: str, names: Iterable[str], kind: str = "categorical") -> None:
    """Warns, and says which lines of a schema give columns another kind."""
    lines = ", ".join(f"`- {{kind: {kind}, name: {name}}}`" for name in names)
    warnings.warn(
        f"{message}; `twml-ops schema` writes a file for `train --schema` in which another kind is "
        f"the line {lines}",
        DataWarning,
        stacklevel=2,
    )
