"""`twml-ops tables`: a table, JSON, a plot and a page, of every kind of source."""

import json

import numpy as np
import pandas as pd
import pytest

from twml_ops.cli import main
from twml_ops.data import open_source
from twml_ops.training.table_profile import TablesOptions, profile_of

ROWS = 3000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same categories in all formats that can have them."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(1)
    user = [f"u{i}" for i in rng.zipf(1.2, ROWS) % 900]
    item = [f"i{i}" for i in rng.integers(0, 40, ROWS)]
    frame = pd.DataFrame({"label": rng.integers(0, 2, ROWS), "user": user, "item": item})
    frame.to_csv(folder / "data.csv", index=False)
    frame.to_parquet(folder / "data.parquet")
    numbers = "\t".join(["1"] * 13)
    empty = "\t".join([""] * 24)
    criteo = "".join(
        f"{label}\t{numbers}\t{u}\t{i}\t{empty}\n"
        for label, u, i in frame.itertuples(index=False, name=None)
    )
    (folder / "data.tsv").write_text(criteo)
    lines = [f"{row % 2} {i + 1}:1 {j + 100}:2" for row, (i, j) in enumerate(
        zip(rng.integers(0, 90, ROWS), rng.integers(0, 50, ROWS), strict=True))]  # fmt: skip
    (folder / "data.svm").write_text("\n".join(lines))
    return folder


def profile(capsys, *arguments):
    main(["tables", *map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


SOURCES = ("csv:data.csv", "parquet:data.parquet", "criteo:data.tsv")


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_with_the_same_categories_has_the_same_profile(source, folder, capsys):
    kind, _, file = source.partition(":")
    found = profile(capsys, f"{kind}:{folder / file}", "--batch-size", 100, "--no-shuffle")
    tables = [t for t in found["tables"] if t["rows"] > 1]
    want = profile_of(
        open_source(f"csv:{folder / 'data.csv'}"),
        TablesOptions("", 32, 1, 100, 1e4, None, None, False, 0, 1 << 18),
    )
    assert [t["rows"] for t in tables] == [t.rows for t in want.tables]
    assert [t["hit_rates"] for t in tables] == [t.hit_rates for t in want.tables]
    assert (found["examples"], found["batches"]) == (ROWS, ROWS // 100)
    user = tables[0]
    assert user["table_bytes"] == user["rows"] * 32 * 4 * 2
    assert user["bytes_per_second"] == pytest.approx(user["reads_per_example"] * 1e4 * 256)
    assert user["hit_rates"] == sorted(user["hit_rates"])
    assert found["whole"]["rows"] >= sum(t["rows"] for t in tables)


def test_sparse_ids_are_one_table(folder, capsys):
    found = profile(capsys, f"libsvm:{folder / 'data.svm'}", "--batch-size", 100)
    (table,) = found["tables"]
    assert (table["name"], table["rows"], found["whole"]) == ("sparse ids", 140, None)
    assert table["entries_per_example"] == 2
    assert found["choices"][0]["in_memory"]


def test_the_order_of_training_is_another_one(folder, capsys):
    source = f"csv:{folder / 'data.csv'}"
    shuffled = [profile(capsys, source, "--batch-size", 50, "--seed", seed) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1]
    assert shuffled[0]["tables"][0]["hit_rates"] != shuffled[2]["tables"][0]["hit_rates"]


def test_the_table_says_where_tables_go(folder, capsys, tmp_path):
    arguments = ["--memory", "0.06", "--batch-size", "50", "--units", "16"]
    source, page = f"csv:{folder / 'data.csv'}", tmp_path / "new" / "tables.html"
    main(["tables", source, *arguments, "--file-reads", "100", "--out", str(page)])
    out = capsys.readouterr().out
    for text in ("user", "item", "memory", "file", "all in one", "1 tables whole, 1 behind caches"):
        assert text in out
    assert "the device reads 100 rows/s, which allows" in out.replace("\n", " ")
    text = page.read_text()
    assert "data:image/svg+xml" in text
    assert "user" in text
    picture = tmp_path / "tables.png"
    main(["tables", source, *arguments, "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.jpg"], "--out must end in .png or .html, got x.jpg"),
        (["--memory", "0.001"], "--memory: memory must hold the rows of one step"),
    ],
)
def test_a_wrong_argument_gives_one_line(arguments, message, folder, capsys):
    with pytest.raises(SystemExit):
        main(["tables", f"csv:{folder / 'data.csv'}", *arguments])
    assert message in capsys.readouterr().err


def test_numbers_alone_are_an_error(tmp_path, capsys):
    pd.DataFrame({"label": [0, 1], "n": [0.5, 1.5]}).to_csv(tmp_path / "n.csv", index=False)
    with pytest.raises(SystemExit):
        main(["tables", f"csv:{tmp_path / 'n.csv'}"])
    assert "must have categories or sparse ids" in capsys.readouterr().err
