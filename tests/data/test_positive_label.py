"""`positive_label` makes a label of a column of any values, in every format."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import csv, parquet

from twml_ops.data import ColumnUses, DataError, Schema, open_source, read_schema, schema_to_text
from twml_ops.data.arrow import TableSource

BUY = ColumnUses(labels=("event",), positive_label="buy")
X = [0.5, 1.5, 2.5, 3.5]
WANTED = [1, 0, 0, 1]
COLUMNS = {
    "text": pa.array([" buy", "view", "cart", "buy"]),
    "dictionary": pa.array(["buy", "view", "cart", "buy"]).dictionary_encode(),
    "bytes": pa.array([b"buy", b"view", b"cart", b"buy"]),
    "large_text": pa.array(["buy", "view", "cart", "buy"], pa.large_string()),
}
NUMBERS = {
    "integers": pa.array([2, 1, 3, 2]),
    "floats": pa.array([2.0, 1.0, 3.0, 2.0]),
    "decimals": pa.array([2, 1, 3, 2], pa.decimal128(3, 0)),
    "dictionary": pa.array([2, 1, 3, 2], pa.int16()).dictionary_encode(),
}


def write(column, folder):
    """A column as a table, a Parquet file, a CSV file and TFRecords."""
    table = pa.table({"event": column, "x": X[: len(column)]})
    parquet.write_table(table, folder / "a.parquet")
    csv.write_csv(table, folder / "a.csv")
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as out:
        for value, x in zip(column.to_pylist(), X, strict=False):
            text = value.encode() if isinstance(value, str) else value
            if isinstance(text, bytes):
                kind = {"bytes_list": tf.train.BytesList(value=[text])}
            else:
                kind = {"int64_list": tf.train.Int64List(value=[int(text)])}
            feature = {
                "event": tf.train.Feature(**kind),
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=[x])),
            }
            made = tf.train.Example(features=tf.train.Features(feature=feature))
            out.write(made.SerializeToString())
    return table, [f"{kind}:{folder}/a.{kind}" for kind in ("parquet", "csv", "tfrecord")]


def labels_of(source):
    return np.concatenate([block.labels for block in source.blocks()]).tolist()


@pytest.mark.parametrize("kind", COLUMNS)
def test_texts_are_labels_in_every_format(kind, tmp_path):
    table, files = write(COLUMNS[kind], tmp_path)
    assert labels_of(TableSource("a table", table, uses=BUY)) == WANTED
    for file in files:
        source = open_source(file, uses=BUY)
        assert (labels_of(source), source.schema.label) == (WANTED, "the label is buy"), file
        assert source.schema.continuous == ("x",)


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_are_labels_in_every_format(kind, tmp_path):
    table, files = write(NUMBERS[kind], tmp_path)
    uses = ColumnUses(labels=("event",), positive_label="2")
    assert labels_of(TableSource("a table", table, uses=uses)) == WANTED
    for file in files:
        assert labels_of(open_source(file, uses=uses)) == WANTED, file


def test_the_names_of_folders_are_labels(tmp_path):
    for event in ("buy", "view"):
        (tmp_path / f"event={event}").mkdir()
        (tmp_path / f"event={event}" / "a.csv").write_text("x\n1.5\n2.5\n")
    assert sorted(labels_of(open_source(f"csv:{tmp_path}", uses=BUY))) == [0, 0, 1, 1]


def test_a_row_without_a_label_is_named(tmp_path):
    table, files = write(pa.array(["buy", "view", ""]), tmp_path)
    sources = [TableSource("a table", table, uses=BUY)]
    sources += [open_source(file, uses=BUY) for file in files]
    for source in sources:
        with pytest.raises(DataError, match=r"(row 2|line 4|record 2).*event has no value"):
            labels_of(source)


def test_a_schema_file_has_the_value(tmp_path):
    schema = Schema(("x",), (), 0, "the label is buy", labels=("event",), positive_label="buy")
    _, files = write(COLUMNS["text"], tmp_path)
    for format in ("yaml", "json"):
        (tmp_path / f"schema.{format}").write_text(schema_to_text(schema, format))
        assert read_schema(tmp_path / f"schema.{format}") == schema
        for file in files:
            assert labels_of(open_source(file, schema=tmp_path / f"schema.{format}")) == WANTED
    assert schema.without_labels().positive_label is None


def test_several_labels_have_no_value_in_common(tmp_path):
    _, (file, *_) = write(COLUMNS["text"], tmp_path)
    with pytest.raises(DataError, match="positive_label must be the value of one label column"):
        open_source(file, uses=ColumnUses(labels=("event", "x"), positive_label="buy"))
    with pytest.raises(ValueError, match="positive_label is the value of one label column"):
        Schema(("x",), (), 0, "y", labels=("a", "b"), positive_label="buy")
