"""Files of examples, and what a source reads from them."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from twml_ops.data import arrow, csv, libsvm, open_source, text, tfrecord
from twml_ops.data import parquet as parquet_reader

CRITEO_ROW = [b"0"] + [b"%d" % i for i in range(1, 14)] + [b"%08x" % i for i in range(1, 27)]


@pytest.fixture
def criteo_file(tmp_path):
    """Writes lines (lists of 40 fields, or raw bytes) and returns the path."""

    def write(lines, name="train.tsv"):
        path = tmp_path / name
        text = b"".join((x if isinstance(x, bytes) else b"\t".join(x)) + b"\n" for x in lines)
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return str(path)

    return write


@pytest.fixture
def criteo_row():
    """A Criteo row with some fields replaced, by position."""

    def row(**fields):
        return [fields.get(f"c{i}", field) for i, field in enumerate(CRITEO_ROW)]

    return row


@pytest.fixture
def text_file(tmp_path):
    def write(text, name="data.libsvm"):
        path = tmp_path / name
        raw = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return str(path)

    return write


@pytest.fixture
def rows_of():
    """Every example of an iterable of blocks as (label, {group: [entries]}), slowly."""

    def read(blocks):
        out = []
        for block in blocks:
            for r in range(len(block)):
                groups = {}
                for name, rows in block.groups.items():
                    a, b = rows.row_splits[r], rows.row_splits[r + 1]
                    ids = rows.ids[a:b].tolist()
                    has_values = rows.values is not None
                    groups[name] = (
                        list(zip(ids, rows.values[a:b].tolist(), strict=True))
                        if has_values
                        else ids
                    )
                out.append((float(block.labels[r]), groups))
        return out

    return read


@pytest.fixture
def batches_of():
    """The batches of a dataset as the same rows."""

    def read(dataset):
        out = []
        for features, labels in dataset:
            assert labels.dtype == "float32"
            assert labels.shape[1] == 1
            lists = {name: value.to_list() for name, value in features.items()}
            for r, label in enumerate(np.asarray(labels)[:, 0].tolist()):
                groups = {}
                for name in lists:
                    group, part = name.rsplit("_", 1)
                    if part == "ids":
                        ids, values = lists[name][r], lists.get(f"{group}_values")
                        groups[group] = (
                            ids if values is None else list(zip(ids, values[r], strict=True))
                        )
                out.append((label, groups))
        return out

    return read


ROWS = 64


def write_libsvm(folder, name="x.libsvm"):
    raw = "".join(f"{i % 2} 1:{i}.5\n" for i in range(ROWS)).encode()
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return f"libsvm:{folder / name}?dim=99"


def write_libsvm_gz(folder):
    return write_libsvm(folder, "x.libsvm.gz")


def write_csv(folder, ending=".csv"):
    for k, (start, stop) in enumerate([(0, 10), (10, 41), (41, ROWS)]):
        lines = [f"{i % 2},{i}.5\n" for i in range(start, stop)]
        raw = ("label,x\n" + "".join(lines)).encode()
        (folder / f"{k}{ending}").write_bytes(gzip.compress(raw) if ending[-1] == "z" else raw)
    return f"csv:{folder}/*{ending}"


def write_csv_gz(folder):
    return write_csv(folder, ".csv.gz")


def write_parquet(folder):
    for k, (start, stop) in enumerate([(0, 24), (24, ROWS)]):
        rows = range(start, stop)
        table = pa.table({"label": [i % 2 for i in rows], "x": [i + 0.5 for i in rows]})
        parquet.write_table(table, folder / f"{k}.parquet", row_group_size=4)
    return f"parquet:{folder}/*.parquet"


def write_tfrecord(folder):
    def feature(v):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[v]))

    for k in range(2):
        with tf.io.TFRecordWriter(str(folder / str(k))) as writer:
            for i in range(k * ROWS // 2, (k + 1) * ROWS // 2):
                values = {"label": feature(i % 2), "x": feature(i + 0.5)}
                example = tf.train.Example(features=tf.train.Features(feature=values))
                writer.write(example.SerializeToString())
    return f"tfrecord:{folder}/[01]"


FORMATS = {
    "libsvm": write_libsvm,
    "libsvm.gz": write_libsvm_gz,
    "csv": write_csv,
    "csv.gz": write_csv_gz,
    "parquet": write_parquet,
    "tfrecord": write_tfrecord,
}


@pytest.fixture
def open_examples(tmp_path, monkeypatch):
    """Opens the examples in a format; example i has the label i % 2 and the number i + 0.5."""
    monkeypatch.setattr(text, "CHUNK_BYTES", 40)
    monkeypatch.setattr(tfrecord, "_BATCH_ROWS", 8)
    monkeypatch.setattr(parquet_reader, "_MIN_ROWS", 4)
    written = {}

    def opened(name):
        if name not in written:
            (tmp_path / name).mkdir()
            written[name] = FORMATS[name](tmp_path / name)
        return open_source(written[name])

    return opened


@pytest.fixture
def parsed(monkeypatch):
    """A list that grows by the number of examples of each block that a reader parses."""
    rows = []

    def count(owner, name):
        parse = getattr(owner, name)

        def counting(*args):
            block = parse(*args)
            rows.append(len(block))
            return block

        monkeypatch.setattr(owner, name, counting)

    count(libsvm.LibsvmSource, "_parse")
    count(csv.CsvSource, "_parse")
    count(arrow, "block_of")
    count(tfrecord, "block_of")
    return rows


@pytest.fixture
def numbers_in():
    return _numbers_in


def _numbers_in(dataset):
    """The examples of each batch, by number."""
    batches = []
    for features, labels in dataset:
        values = features.get("continuous_values", features.get("sparse_values"))
        numbers = [int(v) for v in values.flat_values.numpy()]
        assert labels.numpy()[:, 0].tolist() == [i % 2 for i in numbers]
        batches.append(numbers)
    return batches
