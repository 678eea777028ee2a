"""A time has one category however it is written: in files, in data frames, and in exports."""

import datetime
import json
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from tests.export.conftest import scorer_of
from twml_ops._category_hash import MISSING, NULLS
from twml_ops.core import Scorer, time_parts
from twml_ops.data import ColumnUses, DataError, Schema, hash_tokens, open_source
from twml_ops.data.arrow import TableSource
from twml_ops.data.category_ids import time_parts as parts_of
from twml_ops.data.schema import TIME_PARTS, TIME_UNITS
from twml_ops.data.text_values import times_of_texts
from twml_ops.export.raw_columns import RawColumns

NAME = "t"
FEATURES = tuple(f"{NAME}.{part}" for part in TIME_PARTS)
UTC = datetime.timezone.utc
# Spellings of each instant, in seconds since 1970; None: no time.
SPELLINGS = {
    1706696430: [
        "2024-01-31T10:20:30Z",
        "2024-01-31 10:20:30",
        "2024-01-31 10:20:30.999999999999999999",
        "2024/1/31, 10:20:30 AM",
        "31.1.2024 10:20:30",
        "1/31/2024 10:20:30am",
        "2024-01-31T11:50:30+01:30",
        "2024-01-31 05:20:30-05",
        " 2024-01-31 02:20:30 -0800 ",
        "1706696430",
        "+1706696430.0",
        "1706696430.9999999",
    ],
    1706659200: ["2024-01-31", "31.1.2024", "1/31/2024", "2024/01/31 UTC", "1/31/2024, 12:00 AM"],
    -1: ["1969-12-31T23:59:59", "12/31/1969 11:59:59 PM", "-1", "-0.25"],
    951782400: ["2000-02-29", "951782400", "2000-02-28T24:00", "2000-02-29 00:00+0000"],
    1483228800: ["2017-01-01", "2016-12-31T23:59:60Z"],
    None: ["", *NULLS, "  NaN "],
}
TEXTS = [text for texts in SPELLINGS.values() for text in texts]
SECONDS = [seconds for seconds, texts in SPELLINGS.items() for _ in texts]
NO_TIMES = [
    *("soon", "2024-13-01", "2024-01-00", "1.1.20245", "24-01-31", "31/1/2024", "1.7e9"),
    *("2023-02-29", "2024-2-30", "31.4.2024", "2/30/2024", "1900-02-29", "2024-01-31 24:00:01"),
    *("2024-01-31 25:00", "2024-01-31 10:60", "2024-01-31 10:20:61", "2024-01-31 10:20+24:30"),
    *("2024-01-31T10", "2024-01-31 10:20 +1", "9" * 20, "1,706,696,430", "2024-01-31é"),
]


def schema(unit="seconds"):
    return Schema((), FEATURES, 0, "x", times={NAME: unit}, typed=())


def tokens(seconds):
    """The categories of an instant, by another way than the product has."""
    if seconds is None:
        return [""] * len(TIME_PARTS)
    at = datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(seconds=seconds)
    weekday = at.isoweekday()
    return [str(x) for x in (at.hour, weekday, at.month, (weekday - 1) * 24 + at.hour)]


def wanted(instants):
    rows = [tokens(seconds) for seconds in instants]
    columns = zip(FEATURES, zip(*rows, strict=True), strict=True)
    return np.stack([hash_tokens(name, pa.array(column)) for name, column in columns], axis=1)


def ids_of(source, of=None):
    if isinstance(source, pa.Table):
        source = TableSource("a table", source, schema=of or schema())
    else:
        source = open_source(source, schema=of or schema())
    (block,) = source.blocks()
    return block.groups["categorical"].table


def write(column, folder):
    """A column as a CSV file, a Parquet file and TFRecords."""
    table = pa.table({"label": [0] * len(column), NAME: column})
    parquet.write_table(table, folder / "a.parquet")
    lines = [f'0,"{"" if x is None else x}"\n' for x in column.to_pylist()]
    (folder / "a.csv").write_text(f"label,{NAME}\n{''.join(lines)}", encoding="utf-8")
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as out:
        for value in column.to_pylist():
            integer = isinstance(value, int)
            kind = {"int64_list": tf.train.Int64List(value=[value])} if integer else {}
            if isinstance(value, str):
                kind = {"bytes_list": tf.train.BytesList(value=[value.encode()])}
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[0]))
            feature = {"label": label, NAME: tf.train.Feature(**kind)}
            made = tf.train.Example(features=tf.train.Features(feature=feature))
            out.write(made.SerializeToString())
    return [f"{kind}:{folder}/a.{kind}" for kind in ("csv", "parquet", "tfrecord")]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    return scorer_of(tmp_path_factory.mktemp("times"), schema())


def served_ids(texts, of=None):
    return RawColumns(of or schema(), "fields").features({NAME: tf.constant(texts)})


@pytest.mark.parametrize("encoded", [False, True])
def test_spellings_of_a_time_have_the_categories_of_its_instant(encoded, scorer, tmp_path):
    want = wanted(SECONDS)
    assert (want[-1] == MISSING).all()
    column = pa.array(TEXTS)
    for file in write(column, tmp_path):
        np.testing.assert_array_equal(ids_of(file), want, file)
    table = pa.table({"label": [0] * len(column), NAME: column})
    if encoded:
        table = table.set_column(1, NAME, column.dictionary_encode())
    np.testing.assert_array_equal(ids_of(table), want)
    np.testing.assert_array_equal(served_ids(TEXTS)["categorical"], want)
    canonical = ["" if s is None else str(s) for s in SECONDS]
    got = scorer.predict({NAME: TEXTS})
    np.testing.assert_array_equal(got, scorer.predict({NAME: canonical}))
    np.testing.assert_array_equal(got, scorer.predict(table))
    assert len({tuple(row) for row in got.tolist()}) == len(SPELLINGS)


INSTANTS = [1706696430, None, -1, 951782400]
WHOLE_DAYS = [1706659200, None, 0, -86400]


@pytest.mark.parametrize("unit", TIME_UNITS)
def test_integers_have_the_unit_of_the_schema(unit, tmp_path):
    of = schema(unit)
    instants = WHOLE_DAYS if unit == "YYYYMMDD" else INSTANTS
    numbers = [20240131, None, 19700101, 19691231]
    if unit != "YYYYMMDD":
        factor = 1000 ** TIME_UNITS.index(unit)
        numbers = [None if s is None else s * factor + factor // 2 for s in instants]
    want = wanted(instants)
    files = write(pa.array(numbers), tmp_path)
    for file in files:
        np.testing.assert_array_equal(ids_of(file, of), want, file)
    texts = ["" if n is None else str(n) for n in numbers]
    np.testing.assert_array_equal(served_ids(texts, of)["categorical"], want)
    scorer = scorer_of(tmp_path, of)
    iso = [None if s is None else np.datetime64(s, "s") for s in instants]
    want = scorer.predict({NAME: iso})
    for given in (texts, numbers, np.array(numbers, object), pd.array(numbers, "Int64")):
        np.testing.assert_array_equal(scorer.predict({NAME: given}), want)
    np.testing.assert_array_equal(scorer.predict(pd.DataFrame({NAME: numbers}, dtype=object)), want)


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
        pa.timestamp("us", "Europe/Berlin"),
        pa.float64(),
        pa.int64(),
        pa.decimal128(25, 2),
        pa.string(),
        pa.date32(),
        pa.date64(),
    ],
    ids=str,
)
def test_types_of_columns_are_served_as_they_are_read(kind, scorer, tmp_path):
    days = pa.types.is_date(kind)
    instants = WHOLE_DAYS if days else INSTANTS
    column = pa.array(instants, pa.int64())
    if days:
        column = column.cast(pa.timestamp("s")).cast(kind)
    elif pa.types.is_timestamp(kind):
        fraction = 10 ** (3 * ["s", "ms", "us", "ns"].index(kind.unit))
        numbers = [None if s is None else s * fraction + fraction // 2 for s in instants]
        column = pa.array(numbers, pa.int64()).cast(kind)
    elif pa.types.is_floating(kind):
        column = pa.array([None if s is None else s + 0.5 for s in instants])
    else:
        column = column.cast(kind)
    table, want = pa.table({"label": [0] * 4, NAME: column}), wanted(instants)
    np.testing.assert_array_equal(ids_of(table), want)
    parquet.write_table(table, tmp_path / "a.parquet")
    np.testing.assert_array_equal(ids_of(f"parquet:{tmp_path}/a.parquet"), want)
    same = scorer.predict({NAME: ["" if s is None else str(s) for s in instants]})
    np.testing.assert_array_equal(scorer.predict(table), same)
    if not pa.types.is_decimal(kind):
        np.testing.assert_array_equal(scorer.predict({NAME: column.to_pandas()}), same)
        np.testing.assert_array_equal(scorer.predict({NAME: column.to_pylist()}), same)


@pytest.mark.parametrize("unit", ["seconds", ""])
def test_what_is_no_time_is_refused_by_readers_and_exports(unit, tmp_path):
    of, scorer = schema(unit), scorer_of(tmp_path, schema(unit))
    for i, text in enumerate([*NO_TIMES, *([] if unit else ["1706696430", "2024"])]):
        file = write(pa.array(["2024-01-31", text]), tmp_path)[i % 3]
        with pytest.raises(DataError, match=r"(line 3|row 1|record 1): column t: expected a date"):
            ids_of(file, of)
        with pytest.raises(ValueError, match="column 't' must hold dates and times .* in row 1"):
            scorer.predict({NAME: ["2024-01-31", text]})
        with pytest.raises(tf.errors.InvalidArgumentError):
            served_ids(["2024-01-31", text], of)


def test_types_that_lose_seconds_are_refused_by_readers_and_exports(scorer, tmp_path):
    for column in (pa.array([1.7e9], pa.float32()), pa.array([True]), pa.array([np.inf])):
        table = pa.table({"label": [0], NAME: column})
        parquet.write_table(table, tmp_path / "a.parquet")
        for source in (table, f"parquet:{tmp_path}/a.parquet"):
            with pytest.raises(DataError, match="column t: expected"):
                ids_of(source)
        with pytest.raises(ValueError, match="column 't'"):
            scorer.predict(table)
        with pytest.raises(ValueError, match="column 't'"):
            scorer.predict({NAME: column.to_numpy(zero_copy_only=False)})


def made_up(rng):
    """A text that is perhaps a time."""
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 19)))
    if rng.random() < 0.2:
        return rng.choice("-+ ").strip() + digits + rng.choice(["", ".", ".0", ".25"])
    y, m, d = f"{rng.randint(0, 9999):04}", rng.randint(1, 13), rng.randint(1, 32)
    text = rng.choice([f"{y}-{m:02}-{d:02}", f"{y}/{m}/{d}", f"{d}.{m}.{y}", f"{m}/{d}/{y}"])
    clock = f"{rng.randint(0, 24)}:{rng.randint(0, 60):02}"
    clock += rng.choice(["", ":59", ":07", f":59.{digits}"])
    text += rng.choice(["", f" {clock}", f"T{clock}", f", {clock}"])
    text += rng.choice(["", "", " PM", "am"])
    text += rng.choice(["", "Z", " UTC", "GMT", "+01:00", "-0530", "-05", " +0130", "-00:30"])
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice("0123456789 -:/.TZ+APM,x") + text[at + rng.randint(0, 1) :]
    return text


def test_times_that_order_the_examples_and_exports_have_the_features_of_the_readers():
    rng = random.Random(0)
    texts = [made_up(rng) for _ in range(4000)]
    column = pa.array(texts)
    seconds, good = times_of_texts(column)
    seconds = np.floor(np.nan_to_num(seconds))
    for part, per in (("hour", 3600), ("weekday", 86400)):
        values = parts_of(column, part, "seconds")
        read = values >= 0
        assert 0.5 < read.mean() < 1
        assert good[read].all()  # and the others are too long numbers
        assert all(len(t) > 18 for t in column.filter(pa.array(good & ~read)).to_pylist())
        near = read & (np.abs(seconds) < 2**52)  # where a float64 keeps seconds
        number = seconds[near].astype(np.int64) // per
        want = number % 24 if part == "hour" else (number + 3) % 7 + 1
        np.testing.assert_array_equal(values[near], want)
        readable = [t for t, there in zip(texts, read, strict=True) if there]
        of = Schema((), (f"t.{part}",), 0, "x", times={NAME: "seconds"})
        ids = served_ids(readable, of)["categorical"][:, 0]
        want = hash_tokens(f"t.{part}", pa.array([str(v) for v in values[read]]))
        np.testing.assert_array_equal(ids, want)


def test_arguments_of_the_parser_are_named():
    none = np.zeros(0, np.uint8)
    for arguments, name in ((("day", ""), "part"), (("hour", "days"), "unit")):
        with pytest.raises(ValueError, match=f"{name} must be .*, got '"):
            time_parts(none, [0], *arguments)


@pytest.mark.parametrize("change", [{"part": "day"}, {"unit": "days"}, {"column": 3}])
def test_a_program_with_an_unknown_time_is_refused(change, tmp_path):
    scorer_of(tmp_path, schema())
    program = json.loads((tmp_path / "scorer.json").read_text())
    program["raw"]["categories"][0]["time"] |= change
    (tmp_path / "scorer.json").write_text(json.dumps(program))
    with pytest.raises(ValueError, match=next(iter(change))):
        Scorer.load(tmp_path)


def test_a_second_column_of_times_has_features_in_every_format(tmp_path):
    rows = 40
    texts = [f"2024-01-{1 + i % 28:02} {i % 24:02}:30" for i in range(rows)]
    numbers = [1_706_000_000_000 + 3_600_000 * i for i in range(rows)]
    table = pa.table(
        {"label": [0, 1] * (rows // 2), "at": texts, "since": numbers, "x": [0.5] * rows}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    arrow_csv.write_csv(table, tmp_path / "a.csv")
    uses = ColumnUses(time="at", time_features=("hour", "since.weekday", "since.hour"))
    found = []
    for source in (f"parquet:{tmp_path}/a.parquet", f"csv:{tmp_path}/a.csv", table):
        if isinstance(source, pa.Table):
            source = TableSource("a table", source, uses=uses)
        else:
            source = open_source(source, uses=uses)
        assert source.schema.times == {"at": "", "since": "milliseconds"}
        assert source.schema.categorical == ("at.hour", "since.weekday", "since.hour")
        assert source.schema.time == "at"
        (block,) = source.blocks()
        found.append((block.groups["categorical"].table, block.columns["time"]))
    for ids, times in found:
        np.testing.assert_array_equal(ids, found[0][0])
        np.testing.assert_array_equal(times, found[0][1])
    want = hash_tokens("since.hour", pa.array([str(n // 3_600_000 % 24) for n in numbers]))
    np.testing.assert_array_equal(found[0][0][:, 2], want)
