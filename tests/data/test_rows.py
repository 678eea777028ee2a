"""Rows in = rows out: every reader, on odd files that hypothesis writes, against slow parsers."""

import csv
import gzip
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from twml_ops.data import DataError, Schema, csv_rows, hash_tokens, open_source, text, tfrecord
from twml_ops.data import parquet as parquet_reader

SCHEMA = Schema(("x",), ("c",), 0, "the label is 1")
MAX_QUOTED = 40
CELLS = st.text('ab," \n\r\t\0é\'', max_size=6)
NUMBERS = st.sampled_from(["", "1", "-2.5", "1e3"])
LINE_ENDS = st.sampled_from(["\n", "\r\n"])
BLANKS = st.sampled_from(["", "", "", "\n", "\r\n", "  \n", "\n\n"])


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of a few rows, so that every place of a file is at the end of one."""
    monkeypatch.setattr(text, "CHUNK_BYTES", 17)
    monkeypatch.setattr(csv_rows, "MAX_QUOTED_BYTES", MAX_QUOTED)
    monkeypatch.setattr(tfrecord, "_BATCH_ROWS", 3)
    monkeypatch.setattr(parquet_reader, "_MIN_ROWS", 2)


def token(column, cell):
    return None if cell in (None, "") else int(hash_tokens(column, pa.array([cell]))[0])


def row(label, x, cell):
    return float(label), None if x in (None, "") else float(x), token("c", cell)


def rows_of(blocks):
    """(label, number, category) of each example, None where one is missing."""
    rows = []
    for block in blocks:
        numbers = block.groups["continuous"].table[:, 0].tolist()
        ids = block.groups["categorical"].table[:, 0].tolist()
        for label, x, c in zip(block.labels.tolist(), numbers, ids, strict=True):
            rows.append((label, None if math.isnan(x) else x, None if c == -1 else c))
    return rows


def check(name, expected, **options):
    """All ways to read a source give the expected rows."""

    def opened(ending=""):
        return open_source(name + ending, **options)

    assert rows_of(opened().blocks()) == expected
    count = len(expected)
    assert opened().num_examples() == count
    counted = opened()
    assert counted.num_examples() == count
    assert rows_of(counted.blocks()) == expected
    dealt = [rows_of(opened().shard(i, 3).blocks()) for i in range(3)]
    assert sorted(map(str, sum(dealt, []))) == sorted(map(str, expected))
    mixed = opened()
    assert sorted(map(str, rows_of(u for _, v in mixed._units((1, 2)) for u in v.blocks()))) == (
        sorted(map(str, expected))
    )
    if count > 1:
        parts = opened().split(0.5)
        assert rows_of(parts[0].blocks()) + rows_of(parts[1].blocks()) == expected
        assert [p.num_examples() for p in parts] == [len(rows_of(p.blocks())) for p in parts]
        assert rows_of(opened(f"[1:{count}]").blocks()) == expected[1:]


def rows_in(raw, delimiter):
    """The rows of CSV text by Python's parser; None if they are not what a reader accepts."""
    blank = " \t\r\n".replace(delimiter, "")
    source = raw.removeprefix("\ufeff").split("\n")
    lines = [line + "\n" for line in source[:-1]] + [line for line in source[-1:] if line]
    parser = csv.reader(iter(lines), delimiter=delimiter, strict=True)
    rows, begin = [], 0
    try:
        for cells in parser:
            assert not lines[parser.line_num - 1].rstrip("\n").endswith("\r\r")
            if "".join(lines[begin : parser.line_num]).strip(blank):
                rows.append(cells)
            begin = parser.line_num
        header, *rows = rows
        assert header == ["label", "x", "c"]
        assert all(len(cells) == 3 for cells in rows)
        assert all(label in ("0", "1") for label, _, _ in rows)
        return [row(*cells) for cells in rows]
    except (csv.Error, AssertionError, ValueError):
        return None


def quoted(cell):
    return '"' + cell.replace('"', '""') + '"'


@st.composite
def csv_files(draw):
    """A file that is right, or nearly so."""
    delimiter = draw(st.sampled_from([",", "\t"]))
    write = {
        "quoted": quoted,
        "as needed": lambda c: quoted(c) if set(c) & set('"\r\n' + delimiter) else c,
        "as it is": lambda c: c,
    }[draw(st.sampled_from(["quoted", "as needed", "as needed", "as it is"]))]
    end = draw(LINE_ENDS)
    raw = draw(st.sampled_from(["", "\ufeff"])) + draw(BLANKS)
    raw += delimiter.join(["label", "x", "c"]) + end
    for _ in range(draw(st.integers(1, 7))):
        cells = [draw(st.sampled_from("01")), draw(NUMBERS), write(draw(CELLS))]
        raw += draw(BLANKS) + delimiter.join(cells) + end
    raw += draw(BLANKS)
    if draw(st.booleans()):
        raw = raw.rstrip("\r\n")
    return delimiter, raw


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(csv_files(), st.booleans())
@example((",", 'label,x,c\n1,1,"two\nlines"\n0,2,"a ""b"" c"\n'), False)
@example((",", 'label,x,c\n1,1,"inch\n0,2,b\n1,3,"inch\n0,4,c\n'), False)
@example((",", 'label,x,c\n1,1,5" disk\n0,2,6"\n'), False)
@example((",", "label,x,c\r1,1,a\r0,2,b\r"), False)
@example((",", "label,x,c\n1,1,a\n0,2,b\rc\n"), True)
@example((",", 'label,x,c\n0,1,"' + "a\n" * MAX_QUOTED + '"\n'), False)
@example(("\t", 'label\tx\tc\n1\t\t"a\n\n\t"\n\n \n0\t1\t"unclosed\n'), True)
def test_csv_files_have_the_rows_that_python_reads(tmp_path_factory, file, compressed):
    delimiter, raw = file
    path = tmp_path_factory.mktemp("csv") / ("a.tsv" if delimiter == "\t" else "a.csv")
    content = raw.encode()
    if compressed:
        path = path.with_name(path.name + ".gz")
        content = gzip.compress(content)
    path.write_bytes(content)
    expected = rows_in(raw, delimiter)
    if expected is None:
        with pytest.raises(DataError, match=f"{path.name}.*: line [0-9]+"):
            rows_of(open_source(f"csv:{path}", schema=SCHEMA).blocks())
        return
    try:
        check(f"csv:{path}", expected, schema=SCHEMA)
    except DataError as e:
        assert "no closing quote in" in str(e) and "\n" in raw
        assert max(map(len, raw.split('"'))) > MAX_QUOTED // 2
