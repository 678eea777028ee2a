"""`twml-ops schema`."""

import json

import pytest

from twml_ops.cli import main
from twml_ops.data import open_source, read_schema


@pytest.fixture
def data(tmp_path):
    (tmp_path / "x.csv").write_text("label,age,city\n1,7,a\n0,8,b\n")
    return f"csv:{tmp_path}/x.csv"


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_the_file_that_it_writes_reads_the_data(data, format, tmp_path, capsys):
    if format == "yaml":
        pytest.importorskip("yaml")
    main(["schema", data, "--format", format])
    path = tmp_path / f"features.{format}"
    path.write_text(capsys.readouterr().out)
    assert open_source(data, schema=path).schema == read_schema(path) == open_source(data).schema


def test_a_table_names_every_column(data, capsys):
    main(["schema", data, "--format", "table"])
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines() if line.strip()][-3:] == [
        ["label", "label"],
        ["age", "continuous"],
        ["city", "categorical"],
    ]


def test_json_is_what_json_reads(data, capsys):
    main(["schema", data, "--format", "json"])
    content = json.loads(capsys.readouterr().out)
    assert content["features"][0] == {"name": "age", "kind": "continuous"}
    assert content["labels"] == ["label"]


def test_other_columns_can_be_the_labels(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("click,age,buy\n1,7,0\n0,8,1\n")
    data = f"csv:{tmp_path}/x.csv"
    with pytest.raises(SystemExit):
        main(["schema", data])
    error = capsys.readouterr().err
    assert "`--label NAME`. Columns with two values: click, age, buy" in error
    main(["schema", data, "--label", "click", "--label", "buy", "--format", "json"])
    path = tmp_path / "features.json"
    path.write_text(capsys.readouterr().out)
    schema = open_source(data, schema=path).schema
    assert (schema.labels, schema.continuous) == (("click", "buy"), ("age",))


def test_the_table_offers_features_of_every_column_of_times(tmp_path, capsys):
    rows = "".join(f"{i % 2},2024-01-{10 + i},{1_706_000_000 + i},{i / 8}\n" for i in range(9))
    (tmp_path / "x.csv").write_text("label,day,created_at,x\n" + rows)
    show = ["schema", f"csv:{tmp_path}/x.csv", "--format", "table"]
    main(show)
    words = capsys.readouterr().out.split()
    at = [i for i, word in enumerate(words) if word == "--time-features"]
    assert [words[i + 1] for i in at] == ["hour,weekday", "created_at.hour,created_at.weekday"]
    main([*show, "--time-features", "month"])
    assert "features: month" in " ".join(capsys.readouterr().out.split())
