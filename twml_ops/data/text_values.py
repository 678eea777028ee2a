"""Reads texts as numbers, labels, times and lists, and finds integers that float32 would round."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops._arrow_columns import trimmed
from twml_ops._category_hash import NULLS
from twml_ops.data.errors import DataWarning

NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
INFINITE = r"^[-+]?(?i:inf|infinity)$"
INTEGER = r"^[-+]?[0-9]+$"
WHOLE = r"^[-+]?[0-9]+(\.0*)?$"
LEADING_ZERO = r"^[-+]?0[0-9]"
AMOUNT = r"^([-+]?[$€£¥]? ?|[$€£¥] ?[-+])([0-9]+|[1-9][0-9]{0,2}(,[0-9]{3})+)(\.[0-9]+)? ?[$€£¥%]?$"
"""A number with a currency, a percent sign, or commas between thousands, as spreadsheets write."""
TIME = (
    r"^(?P<year>[0-9]{4})[-/](?P<month>[0-9]{1,2})[-/](?P<day>[0-9]{1,2})"
    r"(?:(?:[T ]|, )(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2}(?:\.[0-9]+)?))?)?"
    r"(?: ?(?P<half>[AaPp])[Mm])?"
    r" ?(?P<zone>Z|UTC|GMT|[-+][0-9]{2}(?::?[0-9]{2})?)?$"
)
DAY_FIRST = (r"^([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{4})([^0-9]|$)", r"\3-\2-\1\4")
MONTH_FIRST = (r"^([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})([^0-9]|$)", r"\3-\1-\2\4")
"""Dates in other orders, and the same with the year first, as `TIME` has them."""
_SHORT_YEARS = {  # of spreadsheets, as `1/31/24`; years of 1970 to 2069
    "20": r"^([0-9]{1,2}/[0-9]{1,2}/)([0-6][0-9])($|[ ,])",
    "19": r"^([0-9]{1,2}/[0-9]{1,2}/)([7-9][0-9])($|[ ,])",
}
_COMPACT = r"^([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY, _MONTH, _YEAR = (
    r"(?P<day>[0-9]{1,2})",
    r"(?P<month>[A-Za-z]{3})[a-z]*",
    r"(?P<year>[0-9]{2,4})",
)
_CLOCK = r"(?P<clock>[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?:\.[0-9]+)?(?: ?[AaPp][Mm])?)"
_ZONE = r"(?P<zone>Z|UTC|GMT|[-+][0-9]{2}:?[0-9]{2})"
_NAMED_MONTHS = (  # of web servers, mail, databases, people, C and the API of Twitter
    rf"^(?:[A-Za-z]+,? )?{_DAY}[-/ ]{_MONTH}[-/ ]{_YEAR}(?:[: ]{_CLOCK})?(?: ?{_ZONE})?$",
    rf"^(?:[A-Za-z]+,? )?{_MONTH}\.? {_DAY},? {_YEAR}(?:,? {_CLOCK})?(?: ?{_ZONE})?$",
    rf"^[A-Za-z]+ {_MONTH} +{_DAY} {_CLOCK}(?: {_ZONE})? {_YEAR}$",
)
_EXACT = 1 << 24  # a float32 keeps the integers up to this one
_TYPED = r"^([-+]?(0|[1-9][0-9]*)(\.0*)?|True|TRUE|true|False|FALSE|false)$"


def is_exact(numbers: np.ndarray) -> np.ndarray:
    """Whether float32 represents each whole number exactly; True for numbers with a fraction."""
    if numbers.dtype.kind in "iu":
        rounded = numbers.astype(np.float32)
        fits = np.abs(rounded) < 2.0 ** (63 + (numbers.dtype.kind == "u"))
        return fits & (np.where(fits, rounded, 0).astype(numbers.dtype) == numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        same = numbers.astype(np.float32).astype(np.float64) == numbers
        return same | (np.trunc(numbers) != numbers) | ~np.isfinite(numbers)


def first_rounded(numbers: pa.Array) -> int | None:
    """The first row with a whole number that float32 rounds; None if there is none."""
    if numbers.null_count == len(numbers):
        return None
    if pa.types.is_integer(numbers.type):
        numbers = numbers.fill_null(0)
    array = as_array(numbers)
    # The others are exact: this is one pass over most columns.
    large = np.flatnonzero((array > _EXACT) | (array < -_EXACT))
    rounded = large[~are_kept(numbers, array[large])]
    return int(rounded[0]) if rounded.size else None


def are_kept(numbers: pa.Array, array: np.ndarray) -> np.ndarray:
    """`is_exact` of some of the numbers; the float64 of a long decimal is another number."""
    exact = is_exact(array)
    return exact & (np.abs(array) <= 2**53) if pa.types.is_decimal(numbers.type) else exact


def _without_halves(numbers: pa.Array) -> pa.Array:
    """Halves as float32: Arrow and NumPy compare few of their kinds."""
    return numbers.cast(pa.float32()) if pa.types.is_float16(numbers.type) else numbers


def as_array(numbers: pa.Array) -> np.ndarray:
    """The numbers as a NumPy array; decimals, which NumPy does not have, as floats."""
    if pa.types.is_decimal(numbers.type):
        numbers = numbers.cast(pa.float64())
    return np.asarray(_without_halves(numbers).to_numpy(zero_copy_only=False))


def is_typed(tokens: pa.Array) -> bool:
    """Whether categories are all integers without leading zeros, or bools; see `Schema.typed`."""
    texts = without_nulls(trimmed(tokens.drop_null()))
    return len(texts) > 0 and bool(pc.all(pc.match_substring_regex(texts, _TYPED)).as_py())


def numbers_of_texts(texts: pa.Array, amounts: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """float64 [R], NaN where a text is null, and whether each text is none or a number.

    With `amounts` `12%` is 12 and `$1,234.50` is 1234.5.
    """
    texts = trimmed(texts)
    null = pc.or_kleene(texts.is_null(), pc.is_in(texts, value_set=pa.array(("", *NULLS))))
    good = pc.or_(null.fill_null(True), pc.match_substring_regex(texts, NUMBER).fill_null(True))
    if amounts and not pc.all(good).as_py():
        amount = pc.match_substring_regex(texts, AMOUNT).fill_null(False)
        good = pc.or_(good, amount)
        texts = pc.if_else(amount, pc.replace_substring_regex(texts, "[$€£¥%, ]", ""), texts)
    kept = pc.if_else(pc.and_(good, pc.invert(null)), texts, pa.scalar(None, texts.type))
    numbers = _plain(kept).cast(pa.float64())
    return numbers.to_numpy(zero_copy_only=False), good.to_numpy(zero_copy_only=False)


def numbers_of_labels(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """As `numbers_of_texts`, where yes, true, y, t are 1, no, false, n, f are 0, in any case."""
    lower = pc.ascii_lower(trimmed(texts))
    for number, words in (("1", ("yes", "true", "y", "t")), ("0", ("no", "false", "n", "f"))):
        lower = pc.if_else(pc.is_in(lower, value_set=pa.array(words)), number, lower)
    return numbers_of_texts(lower)


def are_times(texts: pa.Array) -> bool:
    """Whether each text is a date, or a date and a time, of the forms of `times_of_texts`."""
    return bool(pc.all(pc.match_substring_regex(_year_first(texts), TIME)).as_py())


def numbers_of_slashes(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """float64 [R] twice: the numbers before and after the first slash of `1/31/2024`; else NaN."""
    form = r"^(?P<first>[0-9]{1,2})/(?P<second>[0-9]{1,2})/(?:[0-9]{2}|[0-9]{4})(?:$|[ ,])"
    parts = pc.extract_regex(texts, form)

    def part(name: str) -> np.ndarray:
        numbers = pc.struct_field(parts, name).cast(pa.float64())
        return np.asarray(numbers.to_numpy(zero_copy_only=False))

    return part("first"), part("second")


def _year_first(texts: pa.Array, day_first: bool = False) -> pa.Array:
    """Texts in which dates as `31.1.2024`, `1/31/2024` and `31 Jan 2024` begin with the year.

    A year of two digits is one of 1970 to 2069.
    """
    if pc.all(pc.match_substring_regex(texts, "^[0-9]{4}[-/]")).as_py():
        return texts
    texts = _without_month_names(texts)
    if pc.any(pc.match_substring_regex(texts, "^[0-9]{8}T")).as_py():
        texts = pc.replace_substring_regex(texts, _COMPACT, r"\1-\2-\3T\4:\5:\6")
    if not pc.any(pc.match_substring_regex(texts, "^[0-9]{1,2}[./]")).as_py():
        return texts
    for century, form in _SHORT_YEARS.items():
        texts = pc.replace_substring_regex(texts, form, rf"\1{century}\2\3")
    texts = pc.replace_substring_regex(texts, *DAY_FIRST)
    form, iso = MONTH_FIRST
    return pc.replace_substring_regex(texts, form, r"\3-\2-\1\4" if day_first else iso)


def _without_month_names(texts: pa.Array) -> pa.Array:
    """Texts in which dates with an English name of a month, `31/Jan/2024:10:00:00`, are ISO dates.

    A year of two digits is one of 1970 to 2069.
    """
    if not pc.any(pc.match_substring_regex(texts, "(^|[-/ ])[A-Za-z]{3}[a-z]*[-/ .]")).as_py():
        return texts
    for form in _NAMED_MONTHS:
        parts = pc.extract_regex(texts, form)

        def part(name: str, parts: pa.Array = parts) -> pa.Array:
            return pc.struct_field(parts, name)

        months = pc.index_in(pc.utf8_lower(part("month")), value_set=pa.array(_MONTHS))
        numbers = pc.add(months, 1).cast(pa.string())
        year, clock = part("year"), part("clock")
        century = pc.if_else(pc.less(year, "70"), "20", "19")
        short = pc.equal(pc.utf8_length(year), 2)
        year = pc.if_else(short, pc.binary_join_element_wise(century, year, ""), year)
        clock = pc.if_else(pc.equal(clock, ""), "00:00", clock)
        date = pc.binary_join_element_wise(year, numbers, part("day"), "-")
        iso = pc.binary_join_element_wise(date, clock, part("zone"), " ")
        texts = pc.coalesce(pc.utf8_rtrim_whitespace(iso), texts)
    return texts


def times_of_texts(texts: pa.Array, day_first: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """As `numbers_of_texts`, where a date and a time are seconds since 1970, by default of UTC.

    They have the forms that ISO 8601, pandas, R, Spark and BigQuery write, begin with a date
    such as `31.1.2024` or `1/31/2024` (with `day_first` `31/1/2024`), or name the month as web
    servers and databases do. Days and times that do not exist, such as 30 February or 10:75,
    are no times.
    """
    numbers, good = numbers_of_texts(texts, amounts=False)
    if good.all():
        return numbers, good
    parts = pc.extract_regex(_year_first(trimmed(texts), day_first), TIME)
    found = parts.is_valid().to_numpy(zero_copy_only=False)

    def part(name: str) -> np.ndarray:
        values = pc.struct_field(parts, name)
        values = pc.if_else(pc.equal(pc.binary_length(values), 0), None, values)
        return values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)

    year, month, day = (part(name).astype(np.int64) for name in ("year", "month", "day"))
    found &= (month >= 1) & (month <= 12)
    months = (year - 1970) * 12 + np.where(found, month, 1) - 1
    first, next_first = (
        m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        for m in (months, months + 1)
    )
    days = first + day - 1
    found &= (day >= 1) & (days < next_first)
    zones = pc.struct_field(parts, "zone").fill_null("")
    sign = np.where(pc.starts_with(zones, "-").to_numpy(zero_copy_only=False), -1, 1)
    digits = pc.replace_substring_regex(zones, "[^0-9]", "")
    digits = pc.utf8_rpad(digits, 4, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)
    offset = sign * (digits // 100 * 3600 + digits % 100 * 60)
    hour, minute, second = part("hour"), part("minute"), part("second")
    found &= are_on_clock(hour, minute, np.floor(second))
    found &= are_on_clock(digits // 100, digits % 100, 0 * digits)
    halves = pc.struct_field(parts, "half").fill_null("")
    if pc.any(pc.not_equal(halves, "")).as_py():
        halves = pc.ascii_lower(halves).to_numpy(zero_copy_only=False)
        hour = np.where(halves == "", hour, hour % 12 + 12 * (halves == "p"))
    clock = hour * 3600 + minute * 60 + second
    times = np.where(found, days * 86400.0 + clock - offset, numbers)
    return times, good | found


def are_on_clock(hour: Any, minute: Any, second: Any) -> Any:
    """Whether a clock shows a time, for NumPy and TensorFlow.

    A day ends at 24:00, and a minute can have a leap second.
    """
    return (minute < 60) & (second <= 60) & ((hour < 24) | ((hour <= 24) & (minute + second <= 0)))


def _plain(numbers: pa.Array) -> pa.Array:
    """Texts of numbers without the sign that Arrow does not read."""
    return pc.replace_substring_regex(numbers, r"^\+", "")


def are_lossy(texts: pa.Array) -> np.ndarray:
    """Whether each text is an integer that could be an id which a float32 does not keep: bool [R].

    It has leading zeros, more than the 15 digits that a float64 keeps, or is rounded.
    """
    texts = trimmed(texts).fill_null("")
    whole = pc.match_substring_regex(texts, WHOLE)
    digits = pc.replace_substring_regex(_plain(texts), r"^-|\.0*$", "")
    numbers = pc.if_else(whole, digits, pa.scalar(None, digits.type)).cast(pa.float64())
    marked = pc.or_(
        pc.match_substring_regex(texts, LEADING_ZERO), pc.greater(pc.binary_length(digits), 15)
    )
    marked, whole = (x.to_numpy(zero_copy_only=False) for x in (marked, whole))
    return whole & (marked | ~is_exact(numbers.to_numpy(zero_copy_only=False)))


def without_nulls(texts: pa.Array) -> pa.Array:
    """Removes the texts that stand for missing numbers."""
    return texts.filter(pc.invert(pc.is_in(texts, value_set=pa.array(("", *NULLS)))))


def say(message: str, names: Iterable[str], kind: str = "categorical") -> None:
    """Warns, and quotes the lines of a schema file that would give the columns another kind."""
    lines = ", ".join(f"`- {{kind: {kind}, name: {name}}}`" for name in names)
    warnings.warn(
        f"{message}; `twml-ops schema` writes a file for `train --schema` in which another kind is "
        f"the line {lines}",
        DataWarning,
        stacklevel=2,
    )
