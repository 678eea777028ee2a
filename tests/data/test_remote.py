"""Objects in a store: the same examples as of files, and errors that name them."""

import gzip
import json
import os

import numpy as np
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs, parquet

from twml_ops.cli import main
from twml_ops.data import DataError, open_source, remote, text
from twml_ops.data import parquet as parquet_reader

ROWS = 90
BUCKET = "clicks"


@pytest.fixture(scope="module")
def store():
    """A server of S3 with a bucket, to which the environment points."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SKIP_SIGNATURE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        s3 = fs.S3FileSystem(
            endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True
        )
        s3.create_dir(BUCKET)
        yield s3
        server.stop()


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 300)
    monkeypatch.setattr(text, "_LINE_BYTES", 20)
    monkeypatch.setattr(parquet_reader, "_MIN_ROWS", 16)


def put(store, key, content):
    with store.open_output_stream(f"{BUCKET}/{key}", compression=None) as stream:
        stream.write(content)


def csv_text(start=0, stop=ROWS):
    lines = [f'{i % 2},{i}.5,"a{i % 7}\n",u{i % 5}\n' for i in range(start, stop)]
    return "label,x,c,user_id\n" + "".join(lines)


def csv_files(folder, ending=""):
    for k in range(2):
        raw = csv_text(k * ROWS // 2, (k + 1) * ROWS // 2).encode()
        (folder / f"{k}.csv{ending}").write_bytes(gzip.compress(raw) if ending else raw)


def parquet_files(folder):
    for k, day in enumerate(("2024-01-01", "2024-01-02")):
        rows = range(k * ROWS // 2, (k + 1) * ROWS // 2)
        part = folder / "t" / f"day={day}" / f"country={'us' if k else 'd e'}"
        part.mkdir(parents=True)
        table = {"label": [i % 2 for i in rows], "x": [i + 0.5 for i in rows]}
        table["c"] = [f"a{i % 7}" for i in rows]
        parquet.write_table(pa.table(table), part / "part-0.parquet", row_group_size=8)
    (folder / "t" / "_SUCCESS").write_bytes(b"")


def libsvm_file(folder):
    (folder / "x.libsvm").write_text("".join(f"{i % 2} {i + 1}:{i}.5\n" for i in range(ROWS)))


def criteo_file(folder):
    row = "\t".join([*map(str, range(13)), *(f"{i:08x}" for i in range(26))])
    raw = "".join(f"{i % 2}\t{row}\n" for i in range(ROWS)).encode()
    (folder / "day.gz").write_bytes(gzip.compress(raw))


SOURCES = {
    "csv": (csv_files, "csv:{}/[01].csv"),
    "csv.gz": (lambda folder: csv_files(folder, ".gz"), "{}/*.csv.gz"),
    "one csv": (csv_files, "{}/1.csv[3:40]"),
    "folder of parquet": (parquet_files, "{}/t"),
    "pattern of folders": (parquet_files, "parquet:{}/t/day=*"),
    "every depth": (parquet_files, "{}/**/*.parquet"),
    "libsvm": (libsvm_file, "{}/x.libsvm"),
    "criteo.gz": (criteo_file, "criteo:{}/day.gz"),
}


def uploaded(store, folder, to):
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        put(store, f"{to}/{path.relative_to(folder)}", path.read_bytes())


@pytest.mark.filterwarnings("ignore:.*guessed from names")
@pytest.mark.parametrize("name", SOURCES)
def test_objects_give_the_same_blocks_as_local_files(name, store, tmp_path):
    write, form = SOURCES[name]
    write(tmp_path)
    uploaded(store, tmp_path, f"same/{name}")
    local = open_source(form.format(tmp_path))
    there = open_source(form.format(f"s3://{BUCKET}/same/{name}"))
    assert there.schema == local.schema
    assert there.findings == local.findings
    assert there.num_examples() == local.num_examples()
    for one, two in zip(local.blocks(), there.blocks(), strict=True):
        np.testing.assert_array_equal(one.labels, two.labels)
        assert one.groups.keys() == two.groups.keys()
        for group, rows in one.groups.items():
            other = two.groups[group]
            np.testing.assert_array_equal(rows.row_splits, other.row_splits)
            np.testing.assert_array_equal(rows.ids, other.ids)
            if rows.values is not None:
                assert rows.values.tobytes() == other.values.tobytes()
    types = local.column_types()
    assert there.column_types() == types
    if types:
        one, two = (pa.Table.from_batches(s.raw_columns(types)) for s in (local, there))
        assert one.equals(two)
    if local.num_examples() == ROWS:
        parts = [sum(map(len, there.shard(k, 2).blocks())) for k in range(2)]
        assert sum(parts) == ROWS


def replaced(kind, folder):
    """An object, and another one in its place."""
    if kind == "parquet":
        for name, add in (("old", 0), ("new", 1)):
            table = pa.table({"label": [0, 1] * 30, "x": np.arange(60.0) + add})
            parquet.write_table(table, folder / name, row_group_size=16)
        return (folder / "old").read_bytes(), (folder / "new").read_bytes()
    old, new = csv_text().encode(), csv_text().replace(".5", ".7").encode()
    return (gzip.compress(old), gzip.compress(new)) if kind == "csv.gz" else (old, new)


@pytest.mark.filterwarnings("ignore:.*guessed from names")
@pytest.mark.parametrize("change", ["same size", "shorter", "deleted"])
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_an_object_that_is_replaced_while_it_is_read_is_an_error(kind, change, store, tmp_path):
    key = f"{change}/x.{kind}"
    old, new = replaced(kind, tmp_path)
    put(store, key, old)
    source = open_source(f"s3://{BUCKET}/{key}")
    blocks = source.blocks()
    next(blocks)
    if change == "deleted":
        store.delete_file(f"{BUCKET}/{key}")
    else:
        put(store, key, new if change == "same size" else old[: len(old) // 3])
    expected = FileNotFoundError if change == "deleted" else DataError
    what = "the object was deleted" if change == "deleted" else "the file has changed since"
    with pytest.raises(expected, match=f"s3://{BUCKET}/{key}: {what}"):
        for _ in blocks:
            pass


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://nowhere/x.csv", "there is no bucket `nowhere`"),
        ("s3://nowhere/folder", "there is no bucket `nowhere`"),
        ("s3://nowhere/*/x.csv", "there is no bucket `nowhere`"),
        (f"s3://{BUCKET}/none.csv", "no such object or folder"),
        (f"s3://{BUCKET}/none/*.csv", "no such object"),
        (f"libsvm:s3://{BUCKET}/none", "no such object or folder"),
    ],
)
def test_what_is_not_there_is_named(uri, message, store):
    with pytest.raises(FileNotFoundError, match=message) as e:
        open_source(uri)
    assert uri.removeprefix("libsvm:") in str(e.value)


def test_a_store_that_cannot_be_reached_is_named_with_its_address(store, monkeypatch):
    monkeypatch.setattr(remote, "_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    message = "s3://b/x.csv: the store cannot be reached at AWS_ENDPOINT_URL=http://127.0.0.1:9"
    with pytest.raises(DataError, match=message):
        open_source("s3://b/x.csv")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.", "is denied"),
        ("AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation", "AWS_PROFILE"),
        ("AWS Error UNKNOWN (HTTP status 301) during HeadObject operation", "set AWS_REGION"),
    ],
)
def test_errors_of_a_store_say_what_to_do(error, message):
    explained = remote.explained("s3://b/x.csv", OSError(error))
    assert isinstance(explained, DataError)
    assert message in str(explained)
    assert error in str(explained)
    assert str(explained).startswith("s3://b/x.csv: ")


def test_what_is_not_read_from_a_store_is_refused(store):
    put(store, "x.tfrecord", b"1")
    with pytest.raises(DataError, match="TFRecord files are read on this machine only"):
        open_source(f"s3://{BUCKET}/x.tfrecord")
    with pytest.raises(DataError, match="expected s3://BUCKET/PATH"):
        open_source("s3:///x.csv")
    put(store, "folder/a.libsvm", b"1 1:1\n")
    with pytest.raises(DataError, match="expected a file, got a folder"):
        open_source(f"libsvm:s3://{BUCKET}/folder")


@pytest.mark.slow  # two trainings
def test_commands_do_with_objects_what_they_do_with_files(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(text, "CHUNK_BYTES", 1 << 12)
    csv_files(tmp_path)
    uploaded(store, tmp_path, "commands")
    printed = []
    for name, folder in (("here", tmp_path), ("there", f"s3://{BUCKET}/commands")):
        out = str(tmp_path / name)
        data = f"{folder}/*.csv"
        capsys.readouterr()
        main(["train", "--data", data, "--model", "logistic", "--epochs", "1", "--out", out])
        capsys.readouterr()
        main(["schema", data])
        main(["predict", out, "--data", data])
        found = capsys.readouterr().out.replace(data, "DATA")
        main(["evaluate", out, "--data", data, "--json"])
        printed.append((found, json.loads(capsys.readouterr().out)["log_loss"]))
    assert printed[0] == printed[1]


@pytest.mark.parametrize("name", ["csv", "csv.gz", "libsvm.gz", "parquet", "tfrecord"])
def test_a_local_file_that_is_replaced_while_it_is_read_is_an_error(name, open_examples, tmp_path):
    source = open_examples(name)
    blocks = source.blocks()
    next(blocks)
    for path in (p for p in (tmp_path / name).rglob("*") if p.is_file()):
        os.utime(path, ns=(0, 1))
    with pytest.raises(DataError, match="the file has changed since it was first read"):
        for _ in blocks:
            pass
