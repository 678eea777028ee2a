"""Parts for workers: together they are the data, and each worker parses its part only."""

from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from twml_ops.data import csv, open_source, text, tfrecord
from twml_ops.data import parquet as parquet_reader
from twml_ops.data.criteo import CriteoSource

ROWS = 64


def libsvm(folder):
    path = folder / "x.libsvm"
    path.write_text("".join(f"{i % 2} {i + 1}:1\n" for i in range(ROWS)))
    return f"libsvm:{path}?dim=99"


def csv_files(folder):
    for k in range(2):
        lines = (f"{i % 2},{i}\n" for i in range(k * ROWS // 2, (k + 1) * ROWS // 2))
        (folder / f"{k}.csv").write_text("label,x\n" + "".join(lines))
    return f"csv:{folder}/*.csv"


def parquet_files(folder):
    table = pa.table({"label": [i % 2 for i in range(ROWS)], "x": list(range(ROWS))})
    parquet.write_table(table, folder / "x.parquet", row_group_size=4)
    return f"parquet:{folder}/x.parquet"


def records(folder):
    def feature(v):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[v]))

    with tf.io.TFRecordWriter(str(folder / "x")) as writer:
        for i in range(ROWS):
            features = tf.train.Features(feature={"label": feature(i % 2), "x": feature(i)})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return f"tfrecord:{folder}/x"


SOURCES = [libsvm, csv_files, parquet_files, records]


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 40)
    monkeypatch.setattr(tfrecord, "_BATCH_ROWS", 4)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_parts_are_the_examples_each_once(make, count, tmp_path, rows_of):
    source = open_source(make(tmp_path))
    rows = rows_of(source.blocks())
    assert len(rows) == ROWS
    parts = [rows_of(source.shard(i, count).blocks()) for i in range(count)]
    assert sorted(map(str, chain(*parts))) == sorted(map(str, rows))
    train = source.split(0.25)[0]
    pieces = [rows_of(train.shard(i, count).blocks()) for i in range(count)]
    assert sorted(map(str, chain(*pieces))) == sorted(map(str, rows[:48]))
    first = source.shard(0, count)
    assert first.num_examples() == len(parts[0])
    inner = [rows_of(first.shard(i, 2).blocks()) for i in range(2)]
    assert sorted(map(str, inner[0] + inner[1])) == sorted(map(str, parts[0]))


def test_a_worker_parses_its_share_of_the_bytes(tmp_path, criteo_file, criteo_row, monkeypatch):
    parsed = []
    parse = CriteoSource._parse

    def counting(self, chunk):
        parsed.append(len(chunk.text))
        return parse(self, chunk)

    monkeypatch.setattr(text, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(CriteoSource, "_parse", counting)
    source = open_source(f"criteo:{criteo_file([criteo_row()] * 1000, 'x.tsv.gz')}")
    list(source.blocks())
    total, workers = sum(parsed), 4
    for i in range(workers):
        parsed.clear()
        list(source.shard(i, workers).blocks())
        assert abs(sum(parsed) - total / workers) <= 2 * 3000


def test_a_worker_reads_its_row_groups_only(tmp_path, monkeypatch):
    source = open_source(parquet_files(tmp_path))
    read = []
    block = parquet_reader.ParquetSource._block

    def counting(self, batch, path, row):
        read.append(len(batch))
        return block(self, batch, path, row)

    monkeypatch.setattr(parquet_reader.ParquetSource, "_block", counting)
    for i in range(4):
        read.clear()
        list(source.shard(i, 4).blocks())
        assert sum(read) == ROWS // 4


def test_a_csv_worker_parses_its_chunks_only(tmp_path, monkeypatch):
    source = open_source(csv_files(tmp_path))
    parsed = []
    parse = csv.CsvSource._parse

    def counting(self, chunk):
        parsed.append(len(chunk.text))
        return parse(self, chunk)

    monkeypatch.setattr(csv.CsvSource, "_parse", counting)
    list(source.blocks())
    total = sum(parsed)
    parsed.clear()
    list(source.shard(0, 4).blocks())
    assert sum(parsed) <= total / 4 + 2 * 40


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_an_index_out_of_range_is_refused(index, count, tmp_path):
    source = open_source(libsvm(tmp_path))
    for whole in (source, source.shard(0, 2)):
        with pytest.raises(ValueError, match=r"index must be in \[0, count\)"):
            whole.shard(index, count)


def test_a_reader_that_is_abandoned_ends_its_thread(criteo_file, criteo_row, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 1000)
    path = criteo_file([criteo_row()] * 100)
    chunks = text.read_ahead(path)
    next(chunks)
    chunks.close()  # joins the thread
    assert b"".join(c.text for c in text.read_ahead(path)) == Path(path).read_bytes()
