"""Rows in = rows out: every reader, on odd files that hypothesis writes, against slow parsers."""

import contextlib
import csv
import gzip
import math

import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.pairwise import on_both
from twml_ops.data import DataError, Schema, csv_rows, hash_tokens, open_source, text, tfrecord
from twml_ops.data import parquet as parquet_reader

pytestmark = pytest.mark.one_tf  # readers do not depend on the TensorFlow version

SCHEMA = Schema(("x",), ("c",), 0, "the label is 1")
MAX_QUOTED = 60
CELLS = st.text("ab,\" \n\r\t\0é'", max_size=6)
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
    in_any_order = sorted(map(str, expected))
    dealt = [row for i in range(3) for row in rows_of(opened().shard(i, 3).blocks())]
    assert sorted(map(str, dealt)) == in_any_order
    mixed = (block for _, unit in opened()._units((1, 2)) for block in unit.blocks())
    assert sorted(map(str, rows_of(mixed))) == in_any_order
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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
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
    if any("\n" in part and len(part.encode()) > MAX_QUOTED for part in raw.split('"')[1:]):
        with contextlib.suppress(DataError):  # part may be outside of quotes
            check(f"csv:{path}", expected, schema=SCHEMA)
    else:
        check(f"csv:{path}", expected, schema=SCHEMA)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["1 2:3", "0 1:1 # x", "", " ", "# none", "0", "\r"])), LINE_ENDS)
def test_libsvm_files_have_a_row_for_each_label(tmp_path_factory, lines, end):
    path = tmp_path_factory.mktemp("libsvm") / "a"
    path.write_text(end.join(["1 4:1", *lines]), newline="")
    labels = [
        float(line.split()[0]) for line in ["1 4:1", *lines] if line.partition("#")[0].strip()
    ]
    source = open_source(f"libsvm:{path}")
    assert source.num_examples() == len(labels)
    assert [y for block in source.blocks() for y in block.labels.tolist()] == labels
    parts = [open_source(f"libsvm:{path}").shard(i, 2) for i in range(2)]
    assert sum(part.num_examples() for part in parts) == len(labels)


VALUES = st.tuples(
    st.sampled_from([0, 1]),
    st.sampled_from([None, 0.5, -2.0]),
    st.sampled_from([None, "a", '"', "b,\n", "\0"]),
)
FILES = st.lists(st.lists(VALUES, max_size=7), min_size=1, max_size=3).filter(any)


def write_parquet(folder, name, rows, number):
    names = ("label", "x", "c")
    kinds = (pa.int64() if number % 2 else pa.int8(), pa.float64(), pa.string())
    columns = [pa.array([r[i] for r in rows], kind) for i, kind in enumerate(kinds)]
    table = pa.table(columns, names)
    parquet.write_table(table, folder / f"{name}.parquet", row_group_size=2)


def write_tfrecord(folder, name, rows, number):
    compressed = number % 2
    path = str(folder / f"{name}.tfrecord") + ".gz" * compressed
    with tf.io.TFRecordWriter(path, "GZIP" if compressed else "") as writer:
        for label, x, c in rows:
            features = {"label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
            if x is not None:
                features["x"] = tf.train.Feature(float_list=tf.train.FloatList(value=[x]))
            if c is not None:
                values = tf.train.BytesList(value=[c.encode()])
                features["c"] = tf.train.Feature(bytes_list=values)
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def write_csv(folder, name, rows, number):
    with open(folder / f"{name}.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\r\n" if number % 2 else "\n")
        writer.writerows([("label", "x", "c"), *rows])


@pytest.mark.parametrize(
    "write", on_both([write_csv, write_parquet, write_tfrecord], write_tfrecord)
)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(FILES)
def test_a_folder_has_the_rows_of_all_files(write, tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("files")
    (folder / "_SUCCESS").touch()
    (folder / ".part.crc").write_bytes(b"?")
    rows = [r for part in files for r in part]
    if write is write_tfrecord and not all(any(r[i] is not None for r in rows) for i in (1, 2)):
        rows.insert(0, (1, 0.5, "a"))  # in which both features are
        files[0].insert(0, rows[0])
    for number, part in enumerate(files):
        (folder / f"day={number}").mkdir()
        write(folder / f"day={number}", "part", part, number)
    scheme = write.__name__.removeprefix("write_")
    check(f"{scheme}:{folder}", [row(*r) for r in rows], schema=SCHEMA)
    days = Schema(("day",), ("c",), 0, "the label is 1")
    expected = [
        (float(r[0]), float(n), token("c", r[2])) for n, part in enumerate(files) for r in part
    ]
    check(f"{scheme}:{folder}/day=*/*", expected, schema=days)
