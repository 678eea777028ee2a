"""The Criteo reader, against the fields the file was written from."""

import numpy as np
import pyarrow as pa
import pytest

from twml_ops.data import DataError, hash_tokens, open_source, text

ROWS = 57


def lines_with_holes(rows):
    rng = np.random.default_rng(3)
    lines = []
    for i in range(rows):
        fields = [b"%d" % (i % 2)]
        fields += [b"%d" % v for v in rng.integers(-3, 70000, 13)]
        fields += [b"%08x" % v for v in rng.integers(0, 50, 26)]
        for hole in rng.integers(1, 40, i % 9):
            fields[hole] = b""
        lines.append(fields)
    return lines


def expected(fields):
    numbers = [(i, float(v)) for i, v in enumerate(fields[1:14]) if v]
    tokens = [(i, v) for i, v in enumerate(fields[14:], 1) if v]
    ids = [int(hash_tokens(f"C{i}", pa.array([v], pa.binary()))[0]) for i, v in tokens]
    return float(fields[0]), {"continuous": numbers, "categorical": ids}


@pytest.mark.parametrize("name", ["day.tsv", "day.tsv.gz"])
@pytest.mark.parametrize("chunk_bytes", [1, 300, 1 << 20])
def test_every_field_arrives(name, chunk_bytes, criteo_file, rows_of, batches_of, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
    lines = lines_with_holes(ROWS)
    source = open_source(f"criteo:{criteo_file(lines, name)}")
    wanted = [expected(fields) for fields in lines]
    assert source.num_examples() == ROWS
    assert rows_of(source.blocks()) == wanted
    assert batches_of(source.dataset(10)) == wanted
    assert source.schema.continuous == tuple(f"I{i}" for i in range(1, 14))
    assert source.schema.categorical == tuple(f"C{i}" for i in range(1, 27))


@pytest.mark.parametrize("span", [(0, 1), (0, 57), (10, 30), (56, 57), (30, 1000)])
def test_a_row_range_is_those_rows(span, criteo_file, rows_of, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 1000)
    lines = lines_with_holes(ROWS)
    source = open_source(f"criteo:{criteo_file(lines)}[{span[0]}:{span[1]}]")
    wanted = [expected(fields) for fields in lines[slice(*span)]]
    assert rows_of(source.blocks()) == wanted
    assert source.num_examples() == len(wanted)
    assert rows_of(source.blocks(1, 5)) == wanted[1:5]


def test_no_newline_at_the_end_and_windows_line_ends(criteo_file, rows_of, tmp_path):
    lines = lines_with_holes(3)
    whole = b"\n".join(b"\t".join(x) for x in lines)
    for i, raw in enumerate([whole, whole.replace(b"\n", b"\r\n") + b"\r\n"]):
        path = tmp_path / f"{i}.tsv"
        path.write_bytes(raw)
        source = open_source(f"criteo:{path}")
        assert source.num_examples() == 3
        assert rows_of(source.blocks()) == [expected(fields) for fields in lines]


def test_quotes_and_bytes_that_are_no_text_are_part_of_a_category(criteo_file, criteo_row, rows_of):
    line = criteo_row(c14=b'"a', c15=b"\xff\xfe", c16=b"NA", c17=b"null")
    (row,) = rows_of(open_source(f"criteo:{criteo_file([line])}").blocks())
    assert row == expected(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"c0": b"2"}, "column 1 (label): expected 0 or 1, got '2'"),
        ({"c0": b""}, "column 1 (label): expected 0 or 1, got ''"),
        ({"c0": b"x"}, "column 1 (label): expected 0 or 1, got 'x'"),
        ({"c5": b"1.5"}, "column 6 (I5): expected an integer, got '1.5'"),
        ({"c13": b"nan"}, "column 14 (I13): expected an integer, got 'nan'"),
        ({"c13": b"9" * 30}, f"column 14 (I13): expected an integer, got '{'9' * 30}'"),
        (b"1\t" * 11 + b"1", "expected 40 TAB-separated columns, got 12"),
        (b"", "expected 40 TAB-separated columns, got 1"),
        (b"1\t" * 40 + b"1", "expected 40 TAB-separated columns, got 41"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 20])
def test_a_bad_line_is_named(line, message, chunk_bytes, criteo_file, criteo_row, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
    bad = line if isinstance(line, bytes) else criteo_row(**line)
    good = [criteo_row()] * 20
    path = criteo_file([*good, bad, *good, criteo_row(c1=b"later")])
    with pytest.raises(DataError) as e:
        list(open_source(f"criteo:{path}").blocks())
    assert str(e.value) == f"{path}: line 21: {message}"
