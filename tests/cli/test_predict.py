"""`twml-ops predict --keep`: columns of the data beside the predictions of their rows."""

import csv
import datetime
import io
import re

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from twml_ops.cli import main
from twml_ops.data import DataError
from twml_ops.training.evaluation import iter_predictions
from twml_ops.training.reporter import SILENT
from twml_ops.training.trained_run import TrainedRun

# What is written does not depend on the TensorFlow version.
pytestmark = [pytest.mark.one_tf, pytest.mark.usefixtures("bare_runs")]

ROWS = 40
NOTES = ['a, "b"', "", "two\nlines", "plain", "1.50", " padded "]


def columns(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "user_id": [f"{i:05d}" for i in rng.integers(0, 30, rows)],
        "price": [f"{x:.2f}0" for x in rng.random(rows)],
        "note": [NOTES[i % len(NOTES)] for i in range(rows)],
        "label": [str(int(x)) for x in rng.random(rows) < 0.4],
    }


def write_csv(path, table):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keep")
    write_csv(folder / "train.csv", columns(300, 1))
    options = ["--model", "logistic", "--epochs", "1", "--drop", "note"]
    main(["train", "--data", f"{folder}/train.csv", "--out", f"{folder}/run", *options])
    table = columns()
    write_csv(folder / "a.csv", table)
    typed = {
        "user_id": pa.array(table["user_id"]),
        "price": pa.array(map(float, table["price"]), pa.float32()),
        "note": pa.array([n or None for n in table["note"]]).dictionary_encode(),
        "at": pa.array([datetime.date(2024, 1, 1 + i % 9) for i in range(ROWS)]),
        "tags": pa.array([["a", "b"][: i % 3] for i in range(ROWS)]),
        "number": pa.array([None if i == 3 else 1 << 60 | i for i in range(ROWS)]),
    }
    parquet.write_table(pa.table(typed), folder / "a.parquet", row_group_size=7)
    for begin, end in ((0, 25), (25, ROWS)):
        part = folder / "days" / f"day={begin:02d}" / "kind=__HIVE_DEFAULT_PARTITION__"
        part.mkdir(parents=True)
        parquet.write_table(pa.table(typed).slice(begin, end - begin), part / "x.parquet")
    with tf.io.TFRecordWriter(f"{folder}/a.tfrecord") as writer:
        for i in range(ROWS):
            example = tf.train.Example()
            feature = example.features.feature
            feature["user_id"].bytes_list.value.append(table["user_id"][i].encode())
            feature["price"].float_list.value.append(float(table["price"][i]))
            if i != 3:
                feature["number"].int64_list.value.append(i)
            feature["tags"].bytes_list.value.extend([b"a", b"b"][: i % 3])
            writer.write(example.SerializeToString())
    return folder


def predicted(folder, data, capsys, *options):
    capsys.readouterr()
    main(["predict", f"{folder}/run", "--data", data, "--batch-size", "6", *options])
    return capsys.readouterr().out


TAGS = ["|".join(["a", "b"][: i % 3]) for i in range(ROWS)]
WANT = {
    "csv": ("a.csv", {n: columns()[n] for n in ("note", "price", "user_id", "label")}),
    "range": ("a.csv[13:27]", {n: columns()[n][13:27] for n in ("note", "price")}),
    "parquet": (
        "a.parquet",
        {
            "user_id": columns()["user_id"],
            "note": columns()["note"],
            "at": [f"2024-01-{1 + i % 9:02d}" for i in range(ROWS)],
            "tags": TAGS,
            "number": ["" if i == 3 else str(1 << 60 | i) for i in range(ROWS)],
        },
    ),
    "tfrecord": (
        "a.tfrecord",
        {
            "tags": TAGS,
            "user_id": columns()["user_id"],
            "number": ["" if i == 3 else str(i) for i in range(ROWS)],
        },
    ),
    "folders": (
        "days",
        {
            "day": ["00"] * 25 + ["25"] * 15,
            "user_id": columns()["user_id"],
            "kind": [""] * ROWS,
        },
    ),
    "a folder above": ("days/day=25/[3:9]", {"day": ["25"] * 6}),
}


@pytest.mark.parametrize("case", WANT)
def test_kept_columns_are_as_in_the_data_beside_the_predictions_of_their_rows(folder, capsys, case):
    name, want = WANT[case]
    lines = predicted(folder, f"{folder}/{name}", capsys).split()
    kept = predicted(folder, f"{folder}/{name}", capsys, "--keep", ",".join(want))
    header, *rows = csv.reader(io.StringIO(kept, newline=""))
    assert header == [*want, "prediction"]
    found = dict(zip(header, zip(*rows, strict=True), strict=True))
    assert {n: list(found[n]) for n in want} == want
    assert list(found["prediction"]) == lines
    assert len(set(lines)) > 2  # another order would be seen


def test_a_parquet_table_keeps_the_types_and_a_csv_gives_text(folder, capsys, tmp_path):
    names = ["tags", "note", "at", "price", "number"]
    out = ("--out", f"{tmp_path}/p.parquet", "--keep", ",".join(names))
    predicted(folder, f"{folder}/a.parquet", capsys, *out)
    found, data = (parquet.read_table(p) for p in (out[1], f"{folder}/a.parquet"))
    assert found.column_names == [*names, "prediction"]
    for name in names:
        assert found.schema.field(name).type == data.schema.field(name).type
        assert found[name].to_pylist() == data[name].to_pylist()
    lines = predicted(folder, f"{folder}/a.parquet", capsys).split()
    assert [f"{x:.7g}" for x in found["prediction"].to_numpy()] == lines
    predicted(
        folder, f"{folder}/a.csv", capsys, "--out", f"{tmp_path}/c.pq", "--keep", "price,note"
    )
    found = parquet.read_table(f"{tmp_path}/c.pq")
    assert found["price"].to_pylist() == columns()["price"]
    assert found["note"].to_pylist() == [n or None for n in columns()["note"]]


def test_without_kept_columns_a_file_has_lines_and_parquet_the_predictions(
    folder, capsys, tmp_path
):
    data = f"{folder}/a.csv"
    lines = predicted(folder, data, capsys)
    for name in ("p.txt", "p.csv"):
        predicted(folder, data, capsys, "--out", f"{tmp_path}/{name}")
        assert (tmp_path / name).read_text() == lines
    predicted(folder, data, capsys, "--out", f"{tmp_path}/p.parquet")
    table = parquet.read_table(f"{tmp_path}/p.parquet")
    assert [f"{x:.7g}" for x in table.to_pydict()["prediction"]] == lines.split()
    predicted(folder, data, capsys, "--out", f"{tmp_path}/p.tsv", "--keep", "user_id")
    assert (tmp_path / "p.tsv").read_text().startswith("user_id\tprediction\n")


@pytest.mark.parametrize(
    ("data", "keep", "message"),
    [
        ("{}/a.csv", "user_id,no", "has no column no, its columns are user_id, price, note, label"),
        ("{}/a.csv", "price,price", "the column price is named twice"),
        ("{}/taken.csv", "prediction", "the column prediction has the name of the predictions"),
        ("{}/latin.csv", "note", "latin.csv: line 2: expected UTF-8, got the byte 0xe9"),
    ],
)
def test_a_column_that_cannot_be_kept_is_one_line_and_no_file(
    folder, capfd, tmp_path, data, keep, message
):
    write_csv(folder / "taken.csv", {**columns(3), "prediction": ["1", "2", "3"]})
    latin = "user_id,price,note\n00001,1,\u00e9\n".encode("latin-1")
    (folder / "latin.csv").write_bytes(latin)
    out = ["--out", f"{tmp_path}/p.csv", "--keep", keep]
    with pytest.raises(SystemExit):
        main(["predict", f"{folder}/run", "--data", data.format(folder), *out])
    err = capfd.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_only_a_column_that_has_moved_is_named_beside_the_predictions(folder, tmp_path, capsys):
    table = columns(200, 2)
    write_csv(tmp_path / "alike.csv", table)
    prices = [f"{3 + float(x):.3f}" for x in table["price"]]
    write_csv(tmp_path / "moved.csv", {**table, "price": prices})
    for command in ("predict", "evaluate"):
        said = {}
        for name in ("alike", "moved"):
            main([command, f"{folder}/run", "--data", f"{tmp_path}/{name}.csv"])
            said[name] = capsys.readouterr().err
        assert said["alike"] == ""
        assert re.fullmatch(
            r"twml-ops: warning: \S+moved.csv: distributed otherwise than the training data: "
            r"price \(PSI [\d.]+\)\n",
            said["moved"],
        )


def test_data_without_named_columns_say_so(libsvm, libsvm_run, capfd):
    with pytest.raises(SystemExit):
        main(["predict", str(libsvm_run), "--data", libsvm, "--keep", "user_id"])
    assert (
        "has no named columns; expected a CSV, Parquet or TFRecord file" in capfd.readouterr().err
    )


def test_predictions_come_before_all_of_the_data_is_read_and_a_file_only_after(
    folder, tmp_path, capfd
):
    """The last file cannot be read, which is found when its turn comes."""
    for k, price in enumerate((1.0, 2.0, float("inf"))):
        table = {"user_id": pa.array(["00001"] * 9000), "price": pa.array([price] * 9000)}
        parquet.write_table(pa.table(table), tmp_path / f"{k}.parquet")
    trained = TrainedRun(folder / "run")
    source = trained.unlabeled_source(f"{tmp_path}/*.parquet")
    rows = iter_predictions(trained.model, source, SILENT, ("label",), 1000)
    assert next(rows).shape == (1000, 1)
    with pytest.raises((DataError, tf.errors.OpError)):
        list(rows)
    options = ["--keep", "price", "--batch-size", "1000", "--out", f"{tmp_path}/out.csv"]
    with pytest.raises(SystemExit):
        main(["predict", f"{folder}/run", "--data", f"{tmp_path}/*.parquet", *options])
    assert "2.parquet" in capfd.readouterr().err
    assert not list(tmp_path.glob("*out*"))
