"""The Parquet reader, against the columns the files were written from."""

import math

import pyarrow as pa
import pytest
from pyarrow import parquet

from twml_ops.data import DataError, hash_tokens, open_source

COLUMNS = {
    "label": pa.array([1, 0, 0, 1], pa.int8()),
    "age": pa.array([1, None, 3, 2**40], pa.int64()),
    "price": pa.array([0.5, math.nan, None, -1.0], pa.float32()),
    "city": pa.array(["a", None, "", "b"]),
    "kind": pa.array(["x", "y", "x", None]).dictionary_encode(),
    "new": pa.array([True, False, None, True]),
    "ids": pa.array([[5, 0], [], None, [2]], pa.list_(pa.int32())),
    "values": pa.array([[1.5, 2.0], [], None, [-3.0]], pa.list_(pa.float64())),
}


@pytest.fixture
def write(tmp_path):
    def write(columns, name="a.parquet", **options):
        path = tmp_path / name
        parquet.write_table(pa.table(columns), path, **options)
        return str(path)

    return write


def token(column, value):
    return int(hash_tokens(column, pa.array([value]))[0])


WANTED = [
    (1, [(0, 1.0), (1, 0.5)], [("city", "a"), ("kind", "x"), ("new", "true")], [(5, 1.5), (0, 2)]),
    (0, [], [("kind", "y"), ("new", "false")], []),
    (0, [(0, 3.0)], [("kind", "x")], []),
    (1, [(0, 2.0**40), (1, -1.0)], [("city", "b"), ("new", "true")], [(2, -3.0)]),
]
WANTED = [
    (label, {"continuous": c, "categorical": [token(*t) for t in tokens], "sparse": s})
    for label, c, tokens, s in WANTED
]


@pytest.mark.parametrize("row_group_size", [1, 3, 100])
def test_every_column_arrives(row_group_size, write, rows_of, batches_of):
    source = open_source(f"parquet:{write(COLUMNS, row_group_size=row_group_size)}")
    assert source.schema.continuous == ("age", "price")
    assert source.schema.categorical == ("city", "kind", "new")
    assert source.schema.sparse_dim == 6
    assert source.num_examples() == 4
    assert rows_of(source.blocks()) == WANTED
    assert batches_of(source.dataset(3)) == WANTED
    assert rows_of(source.split(0.25)[1].blocks()) == WANTED[3:]


def test_in_version_1_of_the_hash_the_empty_token_is_a_category(write, rows_of):
    source = open_source(f"parquet:{write(COLUMNS)}", hash_version=1)
    assert source.schema.hash_version == 1
    wanted = [
        int(hash_tokens(column, pa.array([value]), version=1)[0])
        for column, value in (("city", ""), ("kind", "x"))
    ]
    assert rows_of(source.blocks())[2][1]["categorical"] == wanted


def test_a_pattern_reads_the_files_in_sorted_order(write, tmp_path, rows_of):
    table = pa.table(COLUMNS)
    write(table.slice(2), "b.parquet")
    write(table.slice(0, 2), "a.parquet")
    source = open_source(f"parquet:{tmp_path}/[ab].parquet")
    assert rows_of(source.blocks()) == WANTED


def test_ids_without_values_count_as_ones(write, rows_of):
    path = write({"label": [True, False], "ids": [[3], [1, 1]]})
    rows = rows_of(open_source(f"parquet:{path}").blocks())
    assert rows == [(1, {"sparse": [(3, 1.0)]}), (0, {"sparse": [(1, 1.0), (1, 1.0)]})]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1]}, "expected a number or bool column `label`"),
        ({"label": ["a"], "x": [1]}, "column `label`, got string"),
        ({"label": [1]}, "no feature columns"),
        ({"label": [1], "x": [{"a": 1}]}, "column x has type struct"),
        ({"label": [0, 3], "x": [1, 1]}, "row 1: label must be 0 or 1"),
        ({"label": [0, None], "x": [1, 1]}, "row 1: label must be 0 or 1 .*, got nan"),
        ({"label": [0, 1], "ids": [[1], [-1]]}, r"row 1: ids must be in \[0, .*got -1"),
        ({"label": [0], "ids": [[1, 2]], "values": [[1.0]]}, "row 0: .* different lengths"),
        ({"label": [0], "ids": [[1]], "values": [[math.nan]]}, "row 0: values must be finite"),
        ({"label": [0], "ids": [[1, None]]}, "`ids` holds a null"),
        ({"label": [0, 0], "x": [1.0, math.inf]}, "row 1: x must be finite .*, got inf"),
    ],
)
def test_what_cannot_be_features_is_named(columns, message, write):
    with pytest.raises(DataError, match=message):
        list(open_source(f"parquet:{write(columns)}").blocks())


def test_an_id_beyond_the_training_data_is_an_error(write):
    path = write({"label": [0, 1], "ids": [[1], [7]]})
    with pytest.raises(DataError, match=r"row 1: ids must be in \[0, 7\).*got 7"):
        list(open_source(f"parquet:{path}?dim=7").blocks())


def test_files_that_are_no_parquet_or_differ_are_named(write, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_source(f"parquet:{tmp_path}/*.none")
    (tmp_path / "x.bad").write_bytes(b"hello world, I am no parquet")
    with pytest.raises(DataError, match=r"x\.bad: not a Parquet file") as e:
        open_source(f"parquet:{tmp_path}/x.bad")
    assert "\n" not in str(e.value)
    write({"label": [1], "a": [1]}, "1.pq")
    write({"label": [1], "b": [1]}, "2.pq")
    with pytest.raises(DataError, match=r"2\.pq: its columns differ"):
        open_source(f"parquet:{tmp_path}/*.pq")
