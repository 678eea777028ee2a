"""A table in memory is read as the Parquet file of it."""

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from twml_ops._frames import raw_columns, to_table
from twml_ops.data import ColumnUses, DataError, Schema
from twml_ops.data import parquet as parquet_reader
from twml_ops.data.arrow import TableSource

ROWS = 300
rng = np.random.default_rng(0)
numbers = rng.integers(0, 40, ROWS)
words = np.array(["a", "b", "c"], object)[rng.integers(0, 3, ROWS)]
missing = rng.random(ROWS) < 0.2

COLUMNS = {
    "int": pa.array(numbers),
    "uint8": pa.array(numbers.astype(np.uint8)),
    "large": pa.array(numbers + 2**53 * (np.arange(ROWS) == 299), mask=missing),
    "whole": pa.array(np.where(missing, np.nan, numbers)),
    "float": pa.array(rng.normal(size=ROWS).astype(np.float32), mask=missing),
    "decimal": pa.array([decimal.Decimal(int(n)) / 4 for n in numbers], pa.decimal128(9, 2)),
    "bool": pa.array(numbers > 20, mask=missing),
    "text": pa.array(words, mask=missing),
    "large_text": pa.array(words).cast(pa.large_string()),
    "binary": pa.array(words).cast(pa.binary()),
    "dictionary": pa.array(words).dictionary_encode(),
    "numbers_dictionary": pa.array(numbers).dictionary_encode(),
    "floats_dictionary": pa.array(numbers.astype(float)).dictionary_encode(),
    "bag": pa.array([words[:k].tolist() for k in numbers % 4]),
    "text_bag": pa.array(["|".join(words[k : k + 1 + k % 3]) for k in range(ROWS)]),
    "ids": pa.array([list(range(k)) for k in numbers % 5]),
    "values": pa.array([[0.5] * k for k in numbers % 5], pa.list_(pa.float32())),
    "at": pa.array(np.arange(ROWS) * 3600, pa.timestamp("s", "Europe/Berlin")),
    "day": pa.array([datetime.date(2024, 1, 1 + k % 28) for k in range(ROWS)]),
    "iso": pa.array([f"2024-01-{1 + k % 28:02}" for k in range(ROWS)]),
    "nothing": pa.nulls(ROWS),
    "duration": pa.array(numbers, pa.duration("s")),
    "struct": pa.array([{"a": int(n)} for n in numbers]),
    "label": pa.array(numbers % 2),
}


def same(table, path, uses=None):
    uses = uses or ColumnUses()
    file = parquet_reader.ParquetSource("file", str(path), uses=uses)
    memory = TableSource("a table", table, uses=uses)
    assert memory.schema == file.schema
    assert (memory.schema.typed, memory.schema.separators) == (
        *(file.schema.typed, file.schema.separators),
    )
    for seed in (None, 3):
        ours, theirs = (s.sample(len(table), seed) for s in (memory, file))
        assert str(ours) == str(theirs)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        assert ours.columns.keys() == theirs.columns.keys()
        for name, column in ours.columns.items():  # the keys of rows as well
            np.testing.assert_array_equal(column, theirs.columns[name])
        for name, group in ours.groups.items():
            assert group.nbytes == theirs.groups[name].nbytes
            for ids, expected in zip(arrays(group), arrays(theirs.groups[name]), strict=True):
                np.testing.assert_array_equal(ids, expected)
    return memory


def arrays(group):
    parts = vars(group).values()
    for part in parts:
        if isinstance(part, dict):
            for inner in part.values():
                yield from arrays(inner)
        elif part is not None:
            yield np.asarray(part)


def test_a_table_gives_the_schema_and_the_examples_of_its_file(tmp_path):
    uses = ColumnUses(time="at", group="text", categorical=("uint8",))
    parquet.write_table(pa.table(COLUMNS), tmp_path / "a.parquet")
    source = same(pa.table(COLUMNS), tmp_path / "a.parquet", uses)
    schema = source.schema
    assert {"float", "decimal"} <= {*schema.continuous}
    assert "whole" in schema.categorical  # integers with missing ones
    assert {"large", "dictionary", "numbers_dictionary", "bag"} <= {*schema.categorical}
    assert (schema.time, schema.group, schema.sparse_dim) == ("at", "text", 4)
    assert not {"duration", "struct", "nothing"} & {*schema.columns}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_are_read_as_the_files_that_their_library_writes(library, tmp_path):
    left_out = ["duration", "struct", "decimal", "floats_dictionary", "numbers_dictionary"]
    table = pa.table(COLUMNS).drop_columns(left_out)
    if library == "polars":
        frame = pl.from_arrow(table)
        frame.write_parquet(tmp_path / "a.parquet")
    else:
        frame = table.to_pandas().sample(frac=1, random_state=1)
        frame.to_parquet(tmp_path / "a.parquet", index=False)
    same(to_table(frame), tmp_path / "a.parquet")


def test_the_pieces_of_a_table_are_the_row_groups_of_its_file(tmp_path, monkeypatch):
    rows = (1 << 20) + 20_000
    table = pa.table({"x": np.arange(rows) % 977, "label": np.arange(rows) % 2})
    parquet.write_table(table, tmp_path / "a.parquet")
    file = parquet_reader.ParquetSource("file", str(tmp_path / "a.parquet"))
    memory = TableSource("a table", table.slice(0, rows))
    unit_rows = [[p.unit_rows() for p in s._pieces()] for s in (memory, file)]
    assert unit_rows == [[[1 << 20], [20_000]]] * 2
    ours, theirs = (s.sample(1000, seed=5) for s in (memory, file))
    np.testing.assert_array_equal(ours.columns["row_keys"], theirs.columns["row_keys"])


def test_errors_name_the_table_the_row_and_the_column():
    schema = Schema(("x",), (), 0, "clicked")
    with pytest.raises(DataError, match="my frame: there is no column x, the columns are"):
        TableSource("my frame", pa.table({"y": [1.0], "label": [0]}), schema=schema)
    with pytest.raises(DataError, match="my frame: column x has type string, expected a number"):
        TableSource("my frame", pa.table({"x": ["a"], "label": [0]}), schema=schema)
    table = pa.table({"x": [1.0, np.inf], "label": [0, 1]})
    with pytest.raises(DataError, match="my frame: row 1: x must be finite in float32, got inf"):
        list(TableSource("my frame", table, schema=schema).blocks())


class Old:
    """A frame with the older interchange protocol alone."""

    def __init__(self, table):
        self.columns = table.column_names
        self._table = table

    def __dataframe__(self, *arguments, **options):
        return self._table.__dataframe__(*arguments, **options)


def test_what_is_no_table_is_refused_with_the_reason():
    both = pd.DataFrame([[1, 2]], columns=["a", "a"])
    for data, error, message in [
        (both, ValueError, "Duplicate column names|several columns with the name a"),
        (pa.table([[1], [2]], names=["a", "a"]), ValueError, "several columns with the name a"),
        (pd.DataFrame({"a": [1, "x"]}), ValueError, "a pandas DataFrame: .* for column a"),
        (pd.DataFrame({"a": []}), ValueError, r"0 sample\(s\)"),
        (pl.DataFrame(), ValueError, r"0 sample\(s\)"),
        (np.zeros((3, 0)), ValueError, r"0 feature\(s\)"),
        (np.zeros(3), ValueError, "Expected 2D array, got 1D array"),
        ("text", ValueError, "Expected 2D array, got 0D array"),
        (np.zeros((2, 2), complex), ValueError, "Complex data not supported"),
        (np.array([[1, 2], ["a", 3]], object), ValueError, "column x0: expected values of one"),
    ]:
        with pytest.raises(error, match=message):
            to_table(data)
    table = pa.table({"a": ["x", "y"], "b": [1.5, 2.5]})
    assert to_table(Old(table)).to_pylist() == table.to_pylist()
    assert to_table([[1, 2], [3, 4]]).column_names == ["x0", "x1"]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_columns_that_are_not_needed_may_hold_anything(package):
    odd = pd.DataFrame({"odd": [{"a": 1}, "text"], "city": ["a", "b"], 7: [1, 2], "x": [1.5, None]})
    if package == "polars":
        city, x = odd["city"].tolist(), odd["x"].tolist()
        odd = pl.DataFrame({"odd": [object(), object()], "city": city, "x": x})
    described = [("x", "dense", "", "", None), ("city", "strings", "", "", None)]
    found = raw_columns(odd, described, {})
    assert found["city"].tolist() == ["a", "b"]
    np.testing.assert_array_equal(found["x"], [1.5, np.nan])
    with pytest.raises(ValueError, match=r"\['nix'\] are missing, got \[.*'odd'"):
        raw_columns(odd, [*described, ("nix", "dense", "", "", None)], {})
