"""Parts for workers: together they are the data, and each worker parses its part only."""

from itertools import chain
from pathlib import Path

import pytest

from tests.data.conftest import FORMATS, ROWS
from twml_ops.data import open_source, text
from twml_ops.data.criteo import CriteoSource


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [1, 3, 20])
def test_parts_are_the_examples_each_once(name, count, open_examples, rows_of):
    source = open_examples(name)
    rows = rows_of(source.blocks())
    assert len(rows) == ROWS
    source = open_examples(name)  # of which nothing is kept in memory
    parts = [rows_of(source.shard(i, count).blocks()) for i in range(count)]
    assert sorted(map(str, chain(*parts))) == sorted(map(str, rows))
    train = source.split(0.25)[0]
    pieces = [rows_of(train.shard(i, count).blocks()) for i in range(count)]
    assert sorted(map(str, chain(*pieces))) == sorted(map(str, rows[:48]))
    first = source.shard(0, count)
    assert first.num_examples() == len(parts[0])
    inner = [rows_of(first.shard(i, 2).blocks()) for i in range(2)]
    assert sorted(map(str, inner[0] + inner[1])) == sorted(map(str, parts[0]))
    again = open_examples(name)
    assert [again.shard(i, count).num_examples() for i in range(count)] == list(map(len, parts))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_worker_parses_its_share_of_the_examples(
    name, shuffle, open_examples, parsed, numbers_in
):
    workers = 3
    seen = []
    for i in range(workers):
        parsed.clear()
        seen += chain(
            *numbers_in(open_examples(name).shard(i, workers).dataset(8, shuffle=shuffle))
        )
        assert 0 < sum(parsed) <= ROWS / workers + 10  # a unit has up to 10 examples
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("name", ["x.tsv", "x.tsv.gz"])
def test_a_worker_parses_its_share_of_the_bytes(name, criteo_file, criteo_row, monkeypatch):
    parsed = []
    parse = CriteoSource._parse

    def counting(self, chunk):
        parsed.append(len(chunk.text))
        return parse(self, chunk)

    monkeypatch.setattr(text, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(CriteoSource, "_parse", counting)
    path = criteo_file([criteo_row()] * 1000, name)
    list(open_source(f"criteo:{path}").blocks())
    total, workers = sum(parsed), 4
    source = open_source(f"criteo:{path}")
    for i in range(workers):
        parsed.clear()
        list(source.shard(i, workers).blocks())
        assert abs(sum(parsed) - total / workers) <= 2 * 3000


@pytest.mark.parametrize("name", FORMATS)
def test_a_source_counts_the_bytes_that_it_parses(name, open_examples):
    workers = 3
    whole = open_examples(name).split(0.25)[0]  # as `train` divides it
    list(whole.blocks())
    total = whole.parsed_bytes
    assert total == whole.num_bytes() > 0
    list(whole.blocks())  # from memory
    assert whole.parsed_bytes == total
    parts = [open_examples(name).split(0.25)[0].shard(i, workers) for i in range(workers)]
    for part in parts:
        assert part.parsed_bytes == 0
        assert sum(1 for _ in part.dataset(8, shuffle=True)) > 0
        assert part.parsed_bytes == part.num_bytes()
        assert abs(part.parsed_bytes - total / workers) <= 0.21 * total  # one unit, in these files
    assert sum(part.parsed_bytes for part in parts) == total


def test_a_worker_reads_its_ranges_of_a_plain_file_only(open_examples, monkeypatch):
    read = []
    read_range = text.read_range

    def counting(path, start, stop):
        chunk = read_range(path, start, stop)
        read.append(len(chunk.text))
        return chunk

    monkeypatch.setattr(text, "read_range", counting)
    list(open_examples("csv").blocks())
    total = sum(read)
    read.clear()
    list(open_examples("csv").shard(0, 4).blocks())
    assert sum(read) <= total / 4 + 2 * 40


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_an_index_out_of_range_is_refused(index, count, open_examples):
    source = open_examples("libsvm")
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
