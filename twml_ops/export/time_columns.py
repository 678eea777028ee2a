"""Features of columns of times, in stock TensorFlow ops: what cc/core/time_text.cc computes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

from twml_ops._category_hash import NULLS
from twml_ops.data.schema import TIME_UNITS
from twml_ops.data.text_values import DAY_FIRST, MONTH_FIRST, TIME, are_on_clock

_NULL = f"^(?:{'|'.join(map(re.escape, NULLS))})?$"
_NUMBER = r"^([-+]?)([0-9]{1,19})(?:\.([0-9]*))?$"
_FACTORS = dict(zip(TIME_UNITS, (1, 10**3, 10**6, 10**9), strict=False))
_DAY = 86400
_GROUPS = 8  # of `TIME`: year, month, day, hour, minute, second, half and zone
_NO_DATE = "1970,1,1,,,,,"


def time_categories(
    name: str, texts: tf.Tensor, unit: str, parts: Sequence[str]
) -> dict[str, tf.Tensor]:
    """The categories of the features of a column.

    Args:
        name: of the column.
        texts: strings [B], the times.
        unit: of integers, see `Schema.times`.
        parts: of `TIME_PARTS`.

    Returns:
        Part → strings [B], its number, empty where the time is missing. Texts that are no times are
        an error.
    """
    texts = tf.strings.strip(texts)
    missing = tf.strings.regex_full_match(texts, _NULL)
    is_number = tf.strings.regex_full_match(texts, _NUMBER)
    dates = tf.strings.regex_replace(texts, DAY_FIRST[0], DAY_FIRST[1])
    dates = tf.strings.regex_replace(dates, MONTH_FIRST[0], MONTH_FIRST[1])
    is_date = tf.strings.regex_full_match(dates, TIME)
    seconds, good = _seconds_of_dates(dates, is_date)
    if unit:
        of_numbers, good_numbers = _seconds_of_numbers(texts, is_number, unit)
        seconds = tf.where(is_number, of_numbers, seconds)
        good = tf.where(is_number, good_numbers, good)
    good = tf.logical_or(missing, good)
    expected = f"column {name!r} must hold dates and times in ISO form"
    expected += " or in the unit of training, got" if unit else ", got"
    wrong = tf.boolean_mask(texts, tf.logical_not(good))
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), [expected, wrong])]):
        seconds = tf.identity(seconds)
    return {p: tf.where(missing, "", tf.strings.as_string(_part(seconds, p))) for p in parts}


def _seconds_of_dates(texts: tf.Tensor, is_date: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """int64 [B], and whether there is such a day and such a time."""
    fields = ",".join(rf"\{i + 1}" for i in range(_GROUPS))
    rows = tf.where(is_date, tf.strings.regex_replace(texts, TIME, fields), _NO_DATE)
    zero, empty = tf.constant([0], tf.int64), tf.constant([""])
    year, month, day, hour, minute, second, half, zone = tf.io.decode_csv(
        rows, [zero, zero, zero, zero, zero, empty, empty, empty]
    )
    second = _integers(tf.strings.regex_replace(second, r"\..*$", ""))
    possible = _exists(year, month, day) & are_on_clock(hour, minute, second)
    is_afternoon = tf.cast(tf.strings.regex_full_match(half, "[Pp]"), tf.int64)
    hour = tf.where(half == "", hour, hour % 12 + 12 * is_afternoon)
    digits = tf.strings.regex_replace(zone, "[^0-9]", "")
    digits = _integers(tf.strings.regex_replace(digits, "^([0-9]{2})$", r"\100"))
    possible &= are_on_clock(digits // 100, digits % 100, 0)
    offset = digits // 100 * 3600 + digits % 100 * 60
    offset = tf.where(tf.strings.regex_full_match(zone, "-.*"), -offset, offset)
    days = _days(year, month, day)
    return days * _DAY + hour * 3600 + minute * 60 + second - offset, is_date & possible


def _seconds_of_numbers(
    texts: tf.Tensor, is_number: tf.Tensor, unit: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """int64 [B], and whether the numbers are times of the unit."""
    whole = tf.where(is_number, tf.strings.regex_replace(texts, _NUMBER, r"\1\2"), "0")
    # Fractions are left out, downwards.
    below = tf.strings.regex_full_match(texts, r"-[0-9]+\.[0-9]*[1-9][0-9]*")
    numbers = _integers(tf.strings.regex_replace(whole, r"^\+", ""))
    numbers -= tf.cast(below, tf.int64)
    if unit in _FACTORS:
        return numbers // _FACTORS[unit], is_number
    year, month, day = numbers // 10_000, numbers // 100 % 100, numbers % 100
    possible = (numbers >= 0) & (numbers <= 99_991_231)
    possible &= _exists(year, month, day)
    return _days(year, month, day) * _DAY, is_number & possible


def _integers(texts: tf.Tensor) -> tf.Tensor:
    """int64 [B], 0 for empty texts."""
    return tf.strings.to_number(tf.where(texts == "", "0", texts), tf.int64)


def _exists(year: tf.Tensor, month: tf.Tensor, day: tf.Tensor) -> tf.Tensor:
    """Whether there is such a day."""
    known = (month >= 1) & (month <= 12)
    month = tf.where(known, month, 1)
    length = _days(year + month // 12, month % 12 + 1, 1) - _days(year, month, 1)
    return known & (day >= 1) & (day <= length)


def _days(year: tf.Tensor, month: tf.Tensor, day: tf.Tensor | int) -> tf.Tensor:
    """The days since 1970; the year begins with March, so that leap days are last."""
    year -= tf.cast(month <= 2, tf.int64)
    of_year = (153 * ((month + 9) % 12) + 2) // 5
    return 365 * year + year // 4 - year // 100 + year // 400 + of_year - 719468 + day - 1


def _part(seconds: tf.Tensor, part: str) -> tf.Tensor:
    """The number of a part, as in cc/core/time_text.h."""
    days = seconds // _DAY
    hour = seconds % _DAY // 3600
    weekday = (days + 3) % 7  # 1970 began on a Thursday
    if part == "hour":
        return hour
    if part == "weekday":
        return weekday + 1
    if part == "hour_of_week":
        return weekday * 24 + hour
    of_era = (days + 719468) % 146097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153  # from March
    return (month + 2) % 12 + 1
