"""The TFRecord reader, against the examples the files were written from."""

import warnings

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tests.pairwise import pairwise
from twml_ops.data import DataError, DataWarning, Schema, hash_tokens, open_source, tfrecord


def example(**features):
    def feature(value):
        if isinstance(value[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        if isinstance(value[0], int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    named = {name: feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString()


@pytest.fixture
def write(tmp_path):
    def write(records, name="a.tfrecord"):
        path = str(tmp_path / name)
        with tf.io.TFRecordWriter(path, "GZIP" if name.endswith(".gz") else "") as writer:
            for record in records:
                writer.write(record)
        return path

    return write


def token(column, value):
    return int(hash_tokens(column, pa.array([value], pa.binary()))[0])


RECORDS = [
    example(label=[1], age=[7], price=[0.5], city=[b"a"], ids=[5, 0], values=[1.5, 2.0]),
    example(label=[0], price=[float("nan")], tags=[b"x", b"y"]),
    example(label=[0], age=[3], city=[b"b"], tags=[b"x"], ids=[2], values=[-3.0]),
]
WANTED = [
    (1, [(0, 7.0), (1, 0.5)], [("city", b"a")], [(5, 1.5), (0, 2.0)]),
    (0, [], [("tags", b"x"), ("tags", b"y")], []),
    (0, [(0, 3.0)], [("city", b"b"), ("tags", b"x")], [(2, -3.0)]),
]
WANTED = [
    (label, {"continuous": c, "categorical": [token(*t) for t in tokens], "sparse": s})
    for label, c, tokens, s in WANTED
]


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_every_feature_arrives(name, write, rows_of, batches_of):
    source = open_source(f"tfrecord:{write(RECORDS, name)}")
    assert source.schema.continuous == ("age", "price")
    assert source.schema.categorical == ("city", "tags")
    assert source.schema.sparse_dim == 6
    assert source.num_examples() == 3
    assert rows_of(source.blocks()) == WANTED
    assert batches_of(source.dataset(2)) == WANTED


def test_a_feature_with_several_tokens_is_a_bag_wherever_they_are(write, monkeypatch):
    monkeypatch.setattr(tfrecord, "_SAMPLE", 1)
    monkeypatch.setattr(tfrecord, "_BATCH_ROWS", 1)
    records = [example(label=[1], tags=[b"x"]), example(label=[0], tags=[b"x", b"y"])]
    path = f"tfrecord:{write(records)}"
    assert open_source(path).schema.bags == ("tags",)
    single = Schema((), ("tags",), 0, "x")
    with pytest.raises(DataError, match="record 1: tags holds more than one category: declare it"):
        list(open_source(path, schema=single).blocks())
    schema = Schema((), ("tags",), 0, "x", bags=("tags",))
    (batch,) = open_source(path, schema=schema).dataset(2, layout="fields")
    x, y = token("tags", b"x"), token("tags", b"y")
    assert batch[0]["bag_tags_ids"].to_list() == [[x], [x, y]]


@pairwise(given=[False, True], batch_rows=[1, 2, 100])
def test_a_feature_is_found_wherever_it_is_first(
    given, batch_rows, write, tmp_path, rows_of, monkeypatch
):
    monkeypatch.setattr(tfrecord, "_SAMPLE", 1)
    monkeypatch.setattr(tfrecord, "_BATCH_ROWS", batch_rows)
    first = [example(label=[1])] * 5
    write([*first, example(label=[0], rare=[b"a"], n=[7])])
    write([example(label=[1], late=[0.5]), *first[:2]], "b.tfrecord")
    write([example(label=[1])], "c.tfrecord")
    schema = Schema(("late", "n"), ("rare",), 0, "x")
    name = f"tfrecord:{tmp_path}/?.tfrecord"
    source = open_source(name, schema=schema if given else None)
    assert source.schema.continuous == ("late", "n")
    assert source.schema.categorical == ("rare",)
    assert source.num_examples() == 10
    rows = rows_of(source.blocks())
    assert len(rows) == 10
    assert rows[5] == (0, {"continuous": [(1, 7.0)], "categorical": [token("rare", b"a")]})
    assert rows[6] == (1, {"continuous": [(0, 0.5)], "categorical": []})


def test_a_feature_of_two_types_is_named(write, tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "_BATCH_ROWS", 2)
    monkeypatch.setattr(tfrecord, "_SAMPLE", 1)
    write([example(label=[1], x=[1])] * 3)
    write([example(label=[1], x=[1])] * 2 + [example(label=[1], x=[b"1"])], "b.tfrecord")
    with pytest.raises(
        DataError, match=r"b.tfrecord: after record 2: x has the type string, .*int"
    ):
        open_source(f"tfrecord:{tmp_path}/*")


def test_a_dataset_reads_inside_tensorflow_before_anything_is_cached(write, tmp_path, batches_of):
    write(RECORDS[:1], "1")
    write(RECORDS[1:], "2")
    source = open_source(f"tfrecord:{tmp_path}/[12]?dim=6")
    assert batches_of(source.dataset(2)) == WANTED


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([b"\xff\xff\xff"], "not tf.Example"),
        ([example(x=[1])], "there is no column `label`"),
        ([example(label=[b"a"], x=[1])], "expected a number `label`"),
        ([example(label=[1])], "no feature columns besides `label`"),
        ([example(label=[1], ids=[1.5])], "`ids` must be integers"),
        ([example(label=[1], x=[1]), example(x=[1])], "record 1: label has no value"),
        ([example(label=[1], x=[1]), example(label=[5], x=[1])], "record 1: label must be 0 or 1"),
        ([example(label=[1], x=[1.5, 2])], "record 0: x holds more than one number"),
        ([example(label=[1], x=[1]), example(label=[1], x=[1.5])], "after record 0"),
        (
            [example(label=[1], ids=[1], values=[1.0, 2.0])],
            "record 0: .* different lengths",
        ),
        ([example(label=[1], ids=[-1])], r"record 0: ids must be in \[0, "),
        ([example(label=[1], x=[float("inf")])], "record 0: x must be finite"),
    ],
)
def test_what_cannot_be_features_is_named(records, message, write):
    with pytest.raises(DataError, match=message) as e:
        list(open_source(f"tfrecord:{write(records)}").blocks())
    assert "\n" not in str(e.value)


def test_a_damaged_file_is_named(write, tmp_path):
    with open(write(RECORDS * 500), "rb") as f:
        raw = f.read()
    path = tmp_path / "cut"
    path.write_bytes(raw[:-10])
    with pytest.raises(DataError, match="cut: damaged TFRecord file"):
        list(open_source(f"tfrecord:{path}").blocks())
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_source(f"tfrecord:{tmp_path}/none*")


def test_a_file_that_is_cut_at_any_byte_loses_no_record_without_a_word(write, tmp_path):
    """TensorFlow takes less than the header of a record for the end of the file."""
    with open(write([example(label=[i % 2], x=[i / 7]) for i in range(3)]), "rb") as file:
        whole = file.read()
    path, size = tmp_path / "cut", len(whole) // 3

    def rows_of(raw):
        path.write_bytes(raw)
        return sum(map(len, open_source(f"tfrecord:{path}", schema=numbers).blocks()))

    numbers = Schema(("x",), (), 0, "the label is 1")
    assert [rows_of(whole[: n * size]) for n in range(1, 4)] == [1, 2, 3]
    for raw in (*(whole[: 2 * size + n] for n in range(1, size)), whole + b"x", whole + bytes(11)):
        with pytest.raises(DataError, match="cut: damaged") as e:
            rows_of(raw)
        assert "{{" not in str(e.value)


def test_a_truncated_gz_loses_no_record_without_a_word(write, tmp_path):
    """TensorFlow takes its end for the end of the file, if the last record is whole."""
    records = [example(label=[i % 2], x=[i / 7]) for i in range(200)]
    with open(write(records, "a.gz"), "rb") as file:
        whole = file.read()
    path = tmp_path / "cut.gz"

    def rows_of(raw):
        path.write_bytes(raw)
        return sum(map(len, open_source(f"tfrecord:{path}", schema=numbers).blocks()))

    numbers = Schema(("x",), (), 0, "the label is 1")
    assert rows_of(whole) == 200
    assert rows_of(whole + whole) == 400  # of two parts
    for size in [*range(100, len(whole), len(whole) // 8), -9, -8, -1]:
        with pytest.raises(DataError, match=r"cut\.gz: (damaged|truncated|after)"):
            rows_of(whole[:size])
    with pytest.raises(DataError, match=r"cut\.gz: damaged"):
        rows_of(whole + whole[:-4])


@pytest.mark.parametrize(
    ("numbers", "categorical"),
    [([2**53, 2**53 + 1, 1], True), ([1] * 300 + [2**24 + 1] * 2, False)],
)
def test_integers_do_not_pass_through_a_float_without_a_warning(numbers, categorical, write):
    path = write([example(label=[0], x=[number]) for number in numbers])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = open_source(f"tfrecord:{path}")
        blocks = list(source.blocks())
    (said,) = [str(w.message) for w in caught if w.category is DataWarning]
    assert source.schema.categorical == (("x",) if categorical else ())
    if categorical:
        values = np.concatenate([block.groups["categorical"].table[:, 0] for block in blocks])
        assert len(np.unique(values)) == len(set(numbers))
    else:
        assert "16777217" in said


def test_integers_in_the_names_of_folders_do_not_pass_through_a_float(write, tmp_path):
    for user in (2**24, 2**24 + 1):
        (tmp_path / f"user={user}").mkdir()
        write([example(label=[1], x=[0.5])], f"user={user}/a.tfrecord")
    with pytest.warns(DataWarning, match="user is a category .* 16777217"):
        source = open_source(f"tfrecord:{tmp_path}")
    assert (source.schema.categorical, source.schema.typed) == (("user",), ("user",))
    ids = np.concatenate([b.groups["categorical"].table[:, 0] for b in source.blocks()])
    assert ids.tolist() == [token("user", b"16777216"), token("user", b"16777217")]
