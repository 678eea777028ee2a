"""The Parquet reader, against the columns the files were written from."""

import contextlib
import math
import os
import resource
from decimal import Decimal

import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from twml_ops.data import (
    DataError,
    Feature,
    hash_tokens,
    open_source,
    read_schema,
    schema_to_text,
)

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
        ({"x": [1]}, "there is no column `label`"),
        ({"label": ["a"], "x": [1]}, "column `label`, got .a.; write 1"),
        ({"label": [1]}, "no feature columns"),
        ({"label": [1], "x": [{"a": 1}]}, r"no feature.*left out: x \(type struct"),
        ({"label": [0, 3], "x": [1, 1]}, "row 1: label must be 0 or 1"),
        ({"label": [0, None], "x": [1, 1]}, "row 1: label has no value"),
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


def test_no_file_is_open_before_or_after_it_is_read(write, tmp_path):
    def open_files():
        return sum(path.startswith(str(tmp_path)) for path in paths())

    def paths():
        for link in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # another thread has closed it meanwhile
                yield os.readlink(f"/proc/self/fd/{link}")

    for i in range(20):
        write({"label": [1, 0], "x": [i, i]}, f"{i}.parquet")
    source = open_source(f"parquet:{tmp_path}/*.parquet")
    assert open_files() == 0
    for _ in source.blocks():
        assert open_files() <= 1
    assert open_files() == 0
    assert source.num_examples() == 40


def test_an_open_file_too_many_is_named_as_such(write, tmp_path, monkeypatch):
    write({"label": [1, 0], "x": [1, 2]})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(DataError, match="too many open files, at most") as e:
            open_source(f"parquet:{tmp_path}/a.parquet")
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "not a Parquet file" not in str(e.value)


def test_files_may_have_compatible_types(write, tmp_path, rows_of):
    types = [(pa.int32(), pa.string()), (pa.float64(), pa.large_string()), (pa.null(), pa.null())]
    for i, (number, texts) in enumerate(types):
        x = pa.array([None if number == pa.null() else i + 1], number)
        c = pa.array([None if texts == pa.null() else "a"], texts)
        write({"x": x, "c": c, "label": [1]}, f"{i}.parquet")
    source = open_source(f"parquet:{tmp_path}/*.parquet")
    assert source.schema.continuous == ("x",)
    a = [token("c", "a")]
    assert rows_of(source.blocks()) == [
        (1, {"continuous": [(0, 1.0)], "categorical": a}),
        (1, {"continuous": [(0, 2.0)], "categorical": a}),
        (1, {"continuous": [], "categorical": []}),
    ]
    write({"x": ["b"], "c": ["a"], "label": [1]}, "9.parquet")
    with pytest.raises(DataError, match=r"9\.parquet: column x has type string, .* double"):
        open_source(f"parquet:{tmp_path}/*.parquet")


ODD = {
    "when": pa.array([0, 1], pa.timestamp("us")),
    "day": pa.array([0, 1], pa.date32()),
    "took": pa.array([0, 1], pa.duration("s")),
    "made": pa.array([{"a": 1}, None]),
    "vector": pa.array([[0.5], []], pa.list_(pa.float32())),
}
EVEN = {
    "price": pa.array([Decimal("1.25"), None]),
    "pair": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
    "key": pa.array([b"ab", None], pa.binary(2)),
}


def test_a_schema_names_every_column_with_the_reason_why_one_is_not_used(write, tmp_path, rows_of):
    path = f"parquet:{write({'label': [1, 0], **ODD, **EVEN})}"
    source = open_source(path)
    assert {n for n, f in source.findings.items() if f.kind == "dropped"} == {*ODD} - {"day"}
    assert source.schema.time == "day"
    assert set(source.schema.features) == {
        Feature("price", "continuous"),
        Feature("key", "categorical"),
        Feature("pair", "bag"),
    }
    text = schema_to_text(source.schema, "yaml", source.findings)
    assert all(f"name: {name}" in text for name in (*ODD, *EVEN) if name != "day")
    file = tmp_path / "s.yaml"
    file.write_text(text)
    assert read_schema(file) == source.schema
    rows = rows_of(open_source(path, schema=file).blocks())
    assert [dict(row[1])["continuous"] for row in rows] == [[(0, 1.25)], []]
    pair = hash_tokens("pair", pa.array(["1", "2"])).tolist()
    assert rows[0][1]["categorical"] == [*pair, token("key", "ab")]


@pytest.mark.parametrize("ending", ["parquet", "csv", "tfrecord"])
def test_labels_may_be_yes_and_no(ending, write, text_file, tmp_path):
    words = ["yes", "No", "TRUE", "False", "1", "0"]
    path = str(tmp_path / "a.tfrecord")
    if ending == "parquet":
        path = write({"label": words, "x": range(6)})
    elif ending == "csv":
        lines = [f"{word},{i}.5\n" for i, word in enumerate(words)]
        path = text_file("label,x\n" + "".join(lines), "a.csv")
    else:
        with tf.io.TFRecordWriter(path) as writer:
            for word in words:
                values = tf.train.BytesList(value=[word.encode()])
                label = tf.train.Feature(bytes_list=values)
                x = tf.train.Feature(float_list=tf.train.FloatList(value=[1]))
                features = tf.train.Features(feature={"label": label, "x": x})
                writer.write(tf.train.Example(features=features).SerializeToString())
    (block,) = open_source(f"{ending}:{path}").blocks()
    assert block.labels.tolist() == [1, 0, 1, 0, 1, 0]


def test_folders_with_values_are_columns(write, tmp_path, rows_of):
    for value, label in [("07", 1), ("__HIVE_DEFAULT_PARTITION__", 0), ("a%2Fb", 1)]:
        folder = f"n={1 + label}/c={value}"
        (tmp_path / folder).mkdir(parents=True)
        write({"label": [label], "x": [0.5]}, f"{folder}/f")
    source = open_source(f"parquet:{tmp_path}")
    assert (source.schema.continuous, source.schema.categorical) == (("x", "n"), ("c",))
    assert [(y, r["continuous"], r["categorical"]) for y, r in rows_of(source.blocks())] == [
        (0, [(0, 0.5), (1, 1.0)], []),
        (1, [(0, 0.5), (1, 2.0)], [token("c", "07")]),
        (1, [(0, 0.5), (1, 2.0)], [token("c", "a/b")]),
    ]
    one = open_source(f"parquet:{tmp_path}/n=2/c=07")
    assert one.schema.categorical == ()  # the folder that was named is no column, but may be one
    assert rows_of(open_source(f"parquet:{tmp_path}/n=2/c=07", like=source.schema).blocks())
