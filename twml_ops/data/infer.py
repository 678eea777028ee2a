"""What a column without a schema is, by its type, name and values.

`look_at` says what a column is and why, from a sample of its values. Ids never become numbers:
integers are categories if float32 would make some of them equal, if the name of the column says
so, or if they repeat in a way that is rare for quantities. `column_uses.py` makes a schema of what
was found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops._arrow_columns import (
    LIST,
    is_day,
    is_list,
    is_number,
    is_token,
    is_typed_kind,
    split_lists,
    trimmed,
)
from twml_ops._category_hash import NULLS
from twml_ops.data.errors import quote
from twml_ops.data.names import (
    is_code,
    is_id,
    is_quantity,
    is_row_number,
    is_time,
    is_version,
)
from twml_ops.data.schema import SPARSE_IDS, SPARSE_VALUES, TIME_UNITS
from twml_ops.data.text_values import (
    AMOUNT,
    INFINITE,
    INTEGER,
    LEADING_ZERO,
    NUMBER,
    WHOLE,
    are_kept,
    are_lossy,
    are_times,
    as_array,
    is_typed,
    numbers_of_slashes,
    numbers_of_texts,
    times_of_texts,
    without_nulls,
)

_MANY = 100  # rows or different values, from which on a sample says something of how they repeat
_ENOUGH = 50
_FEW = 12  # different integers that are as good as categories as they are as numbers
_MOSTLY = 0.5  # share of numbers in a column that was perhaps meant to be one of numbers
_SMOOTH = 0.5  # correlation of the frequencies of neighbouring values, from which they are numbers
_SEPARATORS = ("|", ";", ",")
_TOKEN = r"^[^\s()\[\]{}<>=\"][^()\[\]{}<>=\"]{0,39}$"
_TOKEN_OF_BARS = r"^[^\[\]{}<>=\"]{1,60}$"
_LIST_OF_BLANKS = r"^\[\s*([^\s,]+(\s+[^\s,]+)*\s*)?\]$"  # as NumPy writes arrays
_WEIGHTED = r"^[^:]+:[0-9]*\.?[0-9]+$"  # a part of a bag, as Vowpal Wabbit has them
_WITH_UNIT = r"^[-+]?[0-9]+(\.[0-9]+)? ?[A-Za-z]{1,5}$|^[A-Z]{3} [0-9]+(\.[0-9]+)?$"
_DECIMAL_COMMA = r"^[-+]?[0-9]+,[0-9]+$"
_BOOLS = ({"yes", "no"}, {"true", "false"}, {"y", "n"}, {"t", "f"})
_SECONDS = (946_684_800, 4_102_444_800)  # of the years 2000 to 2100 since 1970
DAYS = TIME_UNITS[-1]
_EPOCHS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


class Finding(NamedTuple):
    """The kind that was found for a column, and the reason.

    Attributes:
        kind: of `Feature.kind`, or "label", "weight", "time", "group" or "dropped".
        why: the reason, in words.
        distinct: how many different values the sample has.
        missing: the share of rows of the sample without a value.
        sure: whether the guess is reliable; False: it may well be something else.
        by_type: whether the type alone, or the user, says what it is.
        typed: whether all values are integers or bools.
        separator: of a bag in texts: what is between two categories.
        in_order: whether the values of the sample are in order; for times.
        unit: what the values may be as times, if they are numbers: one of `TIME_UNITS`, or None.
        is_time: whether the values are times that the schema does not use.
        day_first: whether some values have the day first, as `31/1/2024`, and none has it second.
    """

    kind: str
    why: str
    distinct: int = 0
    missing: float = 0.0
    sure: bool = True
    by_type: bool = False
    typed: bool = False
    separator: str | None = None
    in_order: bool = False
    unit: str | None = None
    is_time: bool = False
    day_first: bool = False


NOTHING = Finding("dropped", "all of its fields are empty or null", 0, 1.0)


def look_at(name: str, column: pa.Array, *, may_be_numbers: bool = False) -> Finding | None:
    """Guesses what a column is; None if it has no values and its type does not decide.

    Args:
        name: of the column.
        column: a sample of its values.
        may_be_numbers: whether texts can be numbers, as in CSV files.
    """
    kind, count = column.type, len(column)
    missing = column.null_count / max(count, 1)
    if pa.types.is_dictionary(kind) and (is_token(kind) or is_number(kind.value_type)):
        values = column.dictionary_decode()
        distinct = pc.count_distinct(values).as_py()
        typed, why = is_typed_kind(kind), f"a dictionary of {kind.value_type}"
        return Finding("categorical", why, distinct, missing, by_type=True, typed=typed)
    if is_list(kind):
        return _of_lists(name, column, missing)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        times = column.drop_null()
        found = Finding("time", f"the type {kind}", len(times.unique()), missing, by_type=True)
        seconds = times.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return found._replace(in_order=_in_order(seconds))
    if pa.types.is_boolean(kind):
        distinct = len(column.drop_null().unique())
        return Finding("categorical", "bools", distinct, missing, by_type=True, typed=True)
    if is_number(kind):
        return _of_numbers(name, column)._replace(missing=missing)
    if not is_token(kind):
        return Finding("dropped", f"type {unusable(name, kind)}", missing=missing, by_type=True)
    text = _of_texts(name, column, may_be_numbers)
    if text is None:
        return None
    if may_be_numbers and (text.kind in ("continuous", "time") or text.typed):
        nulls = pc.is_in(trimmed(column.drop_null()), value_set=pa.array(("", *NULLS)))
        missing += (pc.sum(nulls).as_py() or 0) / max(count, 1)
    return text._replace(missing=missing)


def _of_lists(name: str, column: pa.Array, missing: float) -> Finding:
    inner = column.type.value_type
    if name in (SPARSE_IDS, SPARSE_VALUES) and is_number(inner):
        return Finding("sparse", f"lists called `{name}`", 0, missing, by_type=True)
    why = unusable(name, column.type)
    if why is not None:
        return Finding("dropped", f"type {why}", missing=missing, by_type=True)
    distinct = pc.count_distinct(column.flatten()).as_py()
    return Finding("bag", f"lists of {inner}", distinct, missing, True, True, is_number(inner))


def _of_texts(name: str, column: pa.Array, may_be_numbers: bool) -> Finding | None:
    texts = trimmed(column.drop_null())
    counts = pc.value_counts(texts)
    all_values, number_of = counts.field("values"), counts.field("counts")
    kept = pc.invert(pc.is_in(all_values, value_set=pa.array(("", *NULLS))))
    values, number_of = all_values.filter(kept), number_of.filter(kept)
    if not len(values):
        return None
    repeats = number_of.to_numpy(zero_copy_only=False)
    distinct, count = len(values), int(repeats.sum())
    typed = is_typed(values)
    numbers = pc.match_substring_regex(values, NUMBER)
    if pc.all(numbers).as_py():
        if may_be_numbers:
            holes = count < len(column)
            return _of_number_texts(name, texts, values, repeats, holes)
        found = _epoch(name, values, texts)
        unit = _unit(np.unique(numbers_of_texts(values)[0]))
        text = Finding("categorical", "text", distinct, typed=typed, by_type=True, unit=unit)
        return found or text
    infinite = pc.match_substring_regex(values, INFINITE)
    if may_be_numbers and pc.any(numbers).as_py() and pc.all(pc.or_(numbers, infinite)).as_py():
        # As in Parquet files: reading names the row, and no category hides it.
        why = f"numbers, and {quote(values.filter(infinite)[0].as_py())}, which is an error"
        return Finding("continuous", why, distinct, sure=False)
    if are_times(values):
        return _of_times(texts, values)
    if {v.lower() for v in values[:3].to_pylist()} in _BOOLS and distinct == 2:
        return Finding("categorical", "yes or no", distinct, typed=typed, by_type=True)
    numbers = pc.or_(numbers, pc.match_substring_regex(values, AMOUNT))
    share = pc.mean(numbers.cast(pa.int8())).as_py()
    if may_be_numbers and share == 1:
        marked = values.filter(pc.invert(pc.match_substring_regex(values, NUMBER)))
        return Finding("continuous", f"numbers such as {quote(marked[0].as_py())}", distinct)
    if may_be_numbers and share >= _MOSTLY and distinct > 2:
        first = values.filter(pc.invert(numbers))[0].as_py()
        why = f"it has the text {quote(first)} beside numbers"
        return Finding("categorical", why, distinct, sure=False)
    if pc.mean(pc.match_substring_regex(values, _DECIMAL_COMMA).cast(pa.int8())).as_py() > _MOSTLY:
        why = "numbers with commas, which are read in files with `;` between fields only"
        return Finding("dropped", why, distinct, sure=False)
    separator = _separator(values, repeats)
    if separator is not None:
        tokens = split_lists(values, separator).flatten()
        said = "lists in brackets" if separator == LIST else f"texts with `{separator}` between"
        weights = pc.mean(pc.match_substring_regex(tokens, _WEIGHTED).cast(pa.int8())).as_py() or 0
        sure = weights <= _MOSTLY
        of_weights = "" if sure else ", in which a number behind `:` belongs to the category"
        return Finding(
            "bag",
            f"{said}: {len(tokens.unique()):,} different parts{of_weights}",
            distinct,
            sure=sure,
            typed=is_typed(tokens),
            separator=separator,
        )
    hardly = distinct > _MOSTLY * count and count >= _MANY
    if hardly and is_time(name):
        bad = quote(values[int(times_of_texts(values)[1].argmin())].as_py())
        why = f"its name is that of a time, but the text {bad} is not read as one"
        return Finding("dropped", why, distinct, sure=False)
    spaces = pc.mean(pc.count_substring(values, " ")).as_py()
    if distinct == count and count >= _MANY:
        why = "another text in every row"
        return Finding("dropped", why, distinct, sure=count >= 10 * _MANY)
    if spaces >= 3 and distinct > _MOSTLY * count and count >= _MANY:
        return Finding("dropped", "free text, which hardly repeats", distinct, sure=False)
    if pc.all(pc.match_substring_regex(values, _LIST_OF_BLANKS)).as_py():
        why = "lists without commas between their parts, each of which is one category"
        return Finding("categorical", why, distinct, sure=False)
    units = pc.mean(pc.match_substring_regex(values, _WITH_UNIT).cast(pa.int8())).as_py()
    if units > _MOSTLY and distinct > _FEW:
        return Finding("categorical", "text, mostly numbers with a unit", distinct, sure=False)
    if hardly and not is_id(name):
        return Finding("categorical", "text that hardly repeats", distinct, sure=False)
    return Finding("categorical", "text", distinct, typed=typed, by_type=True)


def _of_times(texts: pa.Array, values: pa.Array) -> Finding:
    """What a column of texts in the form of dates is."""
    distinct, (first, second) = len(values), numbers_of_slashes(values)
    slashes, day_first = ~np.isnan(first), bool((first > 12).any() and not (second > 12).any())
    times, good = times_of_texts(texts, day_first)
    unsaid = slashes.any() and not ((first > 12) | (second > 12)).any()
    if not good.all() or unsaid:
        said = quote(values[int(slashes.argmax())].as_py())
        wrong = f"dates such as {said}, which do not say that the month comes first"
        if not unsaid:
            wrong = "texts in the form of dates, of which some are none"
        return Finding("dropped", wrong, distinct, sure=False)
    in_order = _in_order(pa.array(times[~np.isnan(times)]))
    form = f"dates with the {'day' if day_first else 'month'} first" if slashes.any() else "dates"
    return Finding("time", form, distinct, in_order=in_order, day_first=day_first)


def _of_number_texts(
    name: str, texts: pa.Array, values: pa.Array, repeats: np.ndarray, holes: bool
) -> Finding:
    """What a column of texts that are all numbers is; `holes`: whether some are missing."""
    distinct = len(values)
    whole = pc.all(pc.match_substring_regex(values, WHOLE)).as_py()
    time = _epoch(name, values, texts)
    if time is not None:
        return time
    if not whole and is_version(name) and repeats.sum() >= 5 * distinct:
        return Finding("categorical", "its name is that of versions", distinct)
    if not whole:
        unit = _unit(np.unique(numbers_of_texts(values)[0]))
        why = "numbers with fractions"
        return Finding("continuous", why, distinct, by_type=True, unit=unit)
    zeros = values.filter(pc.match_substring_regex(values, LEADING_ZERO))
    if len(zeros):
        why = f"as numbers, {quote(zeros[0].as_py())} would lose its leading zeros"
        return Finding("categorical", why, distinct, typed=is_typed(values))
    integers = holes or pc.all(pc.match_substring_regex(values, INTEGER)).as_py()
    lossy = np.flatnonzero(are_lossy(values))
    got = values[int(lossy[0])].as_py() if lossy.size else None
    numbers, _ = numbers_of_texts(values)
    rows, _ = numbers_of_texts(without_nulls(texts))
    increasing = distinct == len(rows) and bool((np.diff(rows) > 0).all())
    found = _of_whole(name, numbers, repeats, integers, got, increasing)
    return found._replace(unit=_unit(np.sort(numbers)))


def _of_numbers(name: str, column: pa.Array) -> Finding:
    """What a column of numbers is."""
    there = column.drop_null()
    integers, holes = pa.types.is_integer(there.type), False
    array = as_array(there)
    if pa.types.is_decimal(there.type):  # of scale 0: the integers of Spark and of databases
        integers = there.type.scale <= 0
    elif not integers:
        holes = bool(column.null_count) or bool(np.isnan(array).any())
        there = there.filter(pa.array(np.isfinite(array)))
        array = array[np.isfinite(array)]
    values, repeats = np.unique(array, return_counts=True)
    if not len(values):
        return Finding("continuous", f"the type {column.type}", 0, by_type=True)
    time = _epoch_numbers(name, values, array)
    if time is not None:
        return time
    if not integers and not (np.trunc(values) == values).all():
        sure, why = not is_version(name), f"the type {column.type}"
        why += "" if sure else ", in which the version 1.10 is 1.1"
        return Finding("continuous", why, len(values), sure=sure, by_type=sure, unit=_unit(values))
    # Pandas makes floats of integers with missing ones, of which a float64 keeps these.
    integers = integers or (holes and bool((np.abs(values) <= 2**53).all()))
    inexact = np.flatnonzero(~are_kept(there, array))
    got = str(there[int(inexact[0])].as_py()) if inexact.size else None
    increasing = len(values) == len(array) and bool((np.diff(array.astype(object)) > 0).all())
    found = _of_whole(name, values, repeats, integers, got, increasing)
    return found._replace(unit=_unit(values))


def _of_whole(
    name: str,
    values: np.ndarray,
    repeats: np.ndarray,
    integers: bool,
    lossy: str | None,
    increasing: bool,
) -> Finding:
    """Whether numbers without fractions are quantities or ids.

    Args:
        name: of the column.
        values: the different numbers.
        repeats: how often each occurs.
        integers: whether they are integers, not floats.
        lossy: one of them that a float32 does not keep, if any.
        increasing: whether each row has a higher number than the one before.
    """
    distinct, count = len(values), int(repeats.sum())

    def found(kind: str, why: str, sure: bool = True, by_type: bool = False) -> Finding:
        return Finding(kind, why, distinct, 0.0, sure, by_type, typed=True)

    if integers and count >= _MANY and not is_quantity(name):
        named, gapless = is_id(name) or is_row_number(name), _has_no_gaps(values)
        if increasing and (named or gapless):
            return found("dropped", "row numbers: a higher integer in every row")
        if is_row_number(name) and (distinct == count or name.startswith("__index")):
            return found("dropped", "row numbers: its name is that of an index")
    once = distinct == count and count >= _MANY
    if lossy is not None and (integers or is_id(name)):
        return found("categorical", f"as a number, {lossy} would be rounded", not once)
    if distinct <= 2 and not is_id(name):
        return found("continuous", "at most two integers", by_type=True)
    if is_id(name):
        each = ", another one in every row" if once else ""
        return found("categorical", f"its name is that of an id{each}", not once)
    if is_quantity(name):
        return found("continuous", "its name is that of a quantity", by_type=True)
    rest = count - int(repeats.max())  # one value, mostly 0, may be in nearly all rows
    repeated = count >= _ENOUGH and rest >= 5 * (distinct - 1)
    if is_code(name) and repeated and values.min() >= -1:
        return found("categorical", "its name is that of a code")
    if not integers:
        return found("continuous", "floats", by_type=True)
    if values.min() < -1:
        return found("continuous", "integers, also negative ones", by_type=True)
    if not repeated:
        sure = distinct < _MANY
        return found("continuous", "integers that hardly repeat", sure, by_type=sure)
    if distinct <= _FEW:
        return found("categorical", "few integers")
    order = np.argsort(values)
    smooth = _neighbours_are_alike(repeats[order])
    if smooth >= _SMOOTH:
        return found("continuous", "integers: neighbours are about as frequent", sure=smooth > 0.7)
    return found("categorical", "integers that repeat as ids do", sure=False)


def _has_no_gaps(values: np.ndarray) -> bool:
    return bool(values.max() - values.min() == len(values) - 1)


def _neighbours_are_alike(repeats: np.ndarray) -> float:
    """The correlation of how often a value and the next higher one occur."""
    logs = np.log(repeats)
    first, second = logs[:-1] - logs[:-1].mean(), logs[1:] - logs[1:].mean()
    size = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / size) if size else 0.0


def _epoch(name: str, values: pa.Array, texts: pa.Array) -> Finding | None:
    """What a column of texts is that may be times since 1970, or days such as 20240131."""
    if not pc.all(pc.match_substring_regex(values, NUMBER)).as_py():
        return None
    rows = without_nulls(texts)
    numbers, _ = numbers_of_texts(rows)
    return _epoch_numbers(name, np.unique(numbers), numbers)


def _epoch_numbers(name: str, values: np.ndarray, rows: np.ndarray) -> Finding | None:
    """`_epoch` for a column of numbers."""
    unit, named = _unit(values), is_time(name)
    in_order = bool((rows[1:] >= rows[:-1]).all())
    if unit == DAYS:
        why = f"days as {DAYS}"
        return Finding("time", why, len(values), in_order=in_order, unit=unit) if named else None
    if unit is not None:
        if not (named or (in_order and len(values) >= _MANY and not is_id(name))):
            return None
        why = f"{unit} since 1970"
        return Finding("time", why, len(values), sure=named, in_order=in_order, unit=unit)
    if named and _are_days(values, 10**6):
        return Finding("time", "times as YYYYMMDDhhmmss", len(values), in_order=in_order)
    return None


def _unit(values: np.ndarray) -> str | None:
    """The unit with which ascending numbers are times of recent decades; None if there is none."""
    low, high = float(values[0]), float(values[-1])
    for unit, factor in _EPOCHS.items():
        if _SECONDS[0] * factor <= low and high < _SECONDS[1] * factor:
            return unit
    return DAYS if _are_days(values, 1) else None


def _are_days(values: np.ndarray, clock: int) -> bool:
    """Whether ascending numbers are dates as YYYYMMDD, possibly followed by digits of a time."""
    if float(values[0]) < 19_000_101 * clock or float(values[-1]) >= 21_001_232 * clock:
        return False
    if not (np.trunc(values) == values).all():
        return False
    months, days = values // clock // 100 % 100, values // clock % 100
    return bool(((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def _separator(values: pa.Array, repeats: np.ndarray) -> str | None:
    """What separates the categories of texts that are lists; None if they are not."""
    if pc.all(pc.match_substring_regex(values, r"^\[.*\]$")).as_py():
        blanks = pc.all(pc.match_substring_regex(values, _LIST_OF_BLANKS)).as_py()
        return None if blanks else LIST
    if pc.all(pc.match_substring_regex(values, r"^\{.*\}$")).as_py():  # of Postgres, or objects
        has_names = pc.any(pc.match_substring_regex(values, r"^\{\s*[\"'][^\"']*[\"']\s*:")).as_py()
        return LIST if pc.any(pc.match_substring(values, ",")).as_py() and not has_names else None
    for separator in _SEPARATORS:
        has = pc.match_substring(values, separator).to_numpy(zero_copy_only=False)
        if repeats[has].sum() < 0.1 * repeats.sum():
            continue
        lists = split_lists(values, separator)
        tokens = trimmed(lists.flatten())
        tokens = tokens.filter(pc.not_equal(tokens, ""))
        if not len(tokens):
            continue
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        expected = _TOKEN if separator != "|" else _TOKEN_OF_BARS
        plain = pc.mean(pc.match_substring_regex(tokens, expected).cast(pa.int8())).as_py()
        words = pc.mean(pc.count_substring(tokens, " ")).as_py()
        reused = len(tokens.unique()) <= max(_MOSTLY * len(tokens), 2)
        varied = len(np.unique(lengths)) > 1 or separator == "|"
        if plain >= 0.95 and words < 2 and reused and varied:
            return separator
    return None


def _in_order(numbers: pa.Array) -> bool:
    array = numbers.to_numpy(zero_copy_only=False)
    return bool((array[1:] >= array[:-1]).all())


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
