"""The CSV reader, against the fields the files were written from."""

import gzip

import pyarrow as pa
import pytest

from twml_ops.data import DataError, Schema, csv, open_source, text
from twml_ops.data.category_ids import hash_column

TEXT = """\
label,age,city,note
1,7,a,"x, y"
0,,b,
0,2.5,,z
"""


def ids(column, *tokens):
    return hash_column(column, pa.array(tokens, pa.string())).tolist()


ROWS = [
    (1.0, {"continuous": [(0, 7.0)], "categorical": ids("city", "a") + ids("note", "x, y")}),
    (0.0, {"continuous": [], "categorical": ids("city", "b")}),
    (0.0, {"continuous": [(0, 2.5)], "categorical": ids("note", "z")}),
]


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.tsv", "x.tsv.gz"])
@pytest.mark.parametrize("chunk_bytes", [30, 1 << 20])
def test_every_field_arrives(name, chunk_bytes, text_file, rows_of, batches_of, monkeypatch):
    tabs = TEXT.replace(", ", "; ").replace(",", "\t").replace("; ", ", ")
    path = text_file(tabs if "tsv" in name else TEXT, name)
    source = open_source(f"csv:{path}")
    assert source.schema.continuous == ("age",)
    assert source.schema.categorical == ("city", "note")
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
    assert source.num_examples() == 3
    assert rows_of(source.blocks()) == ROWS
    assert batches_of(source.dataset(2)) == ROWS
    assert rows_of(open_source(f"csv:{path}[1:]").blocks()) == ROWS[1:]


def test_files_of_a_pattern_are_read_in_order(text_file, tmp_path, rows_of):
    header, *lines = TEXT.splitlines(keepends=True)
    text_file(header + lines[0], "1.csv")
    text_file(header + "".join(lines[1:]), "2.csv")
    assert rows_of(open_source(f"csv:{tmp_path}/*.csv").blocks()) == ROWS
    text_file("label,age\n1,1\n", "3.csv")
    with pytest.raises(DataError, match=r"3\.csv: its header .* differs from that of .*1\.csv"):
        list(open_source(f"csv:{tmp_path}/*.csv").blocks())


def test_a_schema_says_what_columns_are(text_file, rows_of):
    path = text_file("y,n,tags,w\n1,5,a|b,1|2\n0,6,,\n")
    schema = Schema((), ("n", "tags"), 0, "x", ("tags",), {"tags": "w"}, labels=("y",))
    (batch,) = open_source(f"csv:{path}", schema=schema).dataset(2, layout="fields")
    features, _ = batch
    assert features["categorical"].numpy()[:, 0].tolist() == ids("n", "5", "6")
    assert features["bag_tags_ids"].to_list() == [ids("tags", "a", "b"), []]
    assert features["bag_tags_values"].to_list() == [[1, 2], []]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("label,x\n1,1\n0,oops\n", "line 3: column x: expected a number, got 'oops'"),
        ("label,x\n1,1\n2,1\n", "line 3: label must be 0 or 1"),
        ("label,x\n1,1\n0,inf\n", "line 3: .*inf"),
        ("label,x\n1,1\n0\n", "line 3: .*2 columns, got 1"),
        ("label,x,x\n1,1,1\n", "line 1: the header has a name twice"),
        ("y,x\n1,1\n", "there is no column label"),
    ],
)
def test_what_is_wrong_is_named(body, message, text_file):
    schema = Schema(("x",), (), 0, "the label is 1")
    with pytest.raises(DataError, match=message) as e:
        list(open_source(f"csv:{text_file(body)}", schema=schema).blocks())
    assert "\n" not in str(e.value)


def test_a_wrong_line_or_weight_is_named_without_a_schema_as_well(text_file):
    with pytest.raises(DataError, match=r"x\.csv: line 3: .*2 columns, got 1"):
        open_source(f"csv:{text_file('label,x' + chr(10) + '1,1' + chr(10) + '0', 'x.csv')}")
    path = text_file("y,tags,w\n1,a|b,1|2\n0,,\n0,a|b,3|x\n", "w.csv")
    schema = Schema((), ("tags",), 0, "x", ("tags",), {"tags": "w"}, labels=("y",))
    with pytest.raises(DataError, match=r"line 4: column w: expected a number, got 'x'"):
        list(open_source(f"csv:{path}", schema=schema).blocks())


def test_types_are_not_guessed_from_a_header_alone(text_file):
    path = text_file("label,x\n")
    with pytest.raises(DataError, match="there are no lines after the header"):
        open_source(f"csv:{path}")
    schema = Schema(("x",), (), 0, "the label is 1")
    assert open_source(f"csv:{path}", schema=schema).num_examples() == 0


@pytest.mark.parametrize("schema", [None, Schema((), ("city",), 0, "y")])
@pytest.mark.parametrize("gap", [1, 50])
def test_text_that_is_not_utf_8_is_named_wherever_it_is(schema, gap, tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "_SAMPLE_BYTES", 40)
    monkeypatch.setattr(text, "CHUNK_BYTES", 64)
    path = tmp_path / "x.csv"
    path.write_bytes(b"label,city\n" + b"0,K\xc3\xb6ln\n1,Ulm\n" * gap + b"0,K\xf6ln\n1,Ulm\n")
    with pytest.raises(DataError, match=rf"line {2 * gap + 2}: expected UTF-8, got the byte 0xf6"):
        list(open_source(f"{path}", schema=schema).blocks())


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (gzip.compress(b"label,x\n1,2\n", mtime=0), "compressed by gzip: its name must end in .gz"),
        (b"PK\x03\x04....\n", "a ZIP archive or an Excel workbook"),
        (b"PAR1....\n", "a Parquet file: write `parquet:`"),
    ],
)
def test_files_of_other_kinds_are_called_by_their_kind(begin, message, tmp_path):
    (tmp_path / "x.csv").write_bytes(begin)
    with pytest.raises(DataError, match=rf"x\.csv: expected a CSV file, got .*{message}"):
        open_source(f"{tmp_path}/x.csv")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_empty_parts_of_a_folder_have_no_rows(ending, tmp_path, rows_of):
    header, *lines = TEXT.splitlines(keepends=True)
    write = gzip.compress if ending else bytes
    parts = ["", header + lines[0], header, "", header + "".join(lines[1:])]
    for number, part in enumerate(parts):
        (tmp_path / f"part-{number}.csv{ending}").write_bytes(
            write(part.encode()) if part or ending else b""
        )
    assert rows_of(open_source(f"{tmp_path}").blocks()) == ROWS


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("no_click", "got 'no_click'; write 1 for what a prediction is the probability of"),
        ("2", "got 2; write 1 for what a prediction is the probability of"),
        ("", "label has no value: leave out rows without a label"),
    ],
)
def test_a_label_that_is_none_is_an_error_that_says_what_to_write(label, message, text_file):
    source = open_source(f"csv:{text_file(f'label,x{chr(10)}1,1{chr(10)}{label},2{chr(10)}')}")
    with pytest.raises(DataError, match=f"line 3: .*{message}"):
        list(source.blocks())


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([0, 1, 2], "the label, which must have two values, not 3"),
        ([0, 1, ""], "the label, which no row may lack"),
        ([0, 0, 0], "the label, which must have two values, not 1"),
        ([0, 1, 1], "the label"),
    ],
)
def test_a_label_without_two_values_is_uncertain(labels, why, text_file):
    body = "".join(f"{y},{i}\n" for i, y in enumerate(labels))
    found = open_source(f"csv:{text_file('label,x' + chr(10) + body)}").findings["label"]
    assert (found.why, found.sure) == (why, why == "the label")


def test_names_that_occur_twice_or_have_blanks_around_them_are_shown(text_file):
    names = ",".join(["label", *(f"x{i}" for i in range(500)), "x7"])
    with pytest.raises(DataError, match=r"twice: 'x7' in the columns \[9, 502\]$"):
        open_source(f"csv:{text_file(names + chr(10) + '1,' * 501 + '1' + chr(10))}")
    with pytest.raises(DataError, match=r"Columns with two values: x, ' label'$"):
        open_source(f"csv:{text_file('x, label' + chr(10) + '1,1' + chr(10) + '2,0', 'y.csv')}")
