"""`twml-ops train` on a file without a schema: what columns are is said and remembered."""

import contextlib
import io
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from twml_ops.cli import main
from twml_ops.cli.configure import configure
from twml_ops.data import open_source
from twml_ops.training.errors import UserError
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("bare_runs")

OPTIONS = ["--model", "logistic", "--epochs", "1", "--label", "clicked", "--drop", "noise,url"]
OPTIONS += ["--time-features", "hour,when.weekday"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log that is not in order of time."""
    folder, rng = tmp_path_factory.mktemp("log"), np.random.default_rng(0)
    lines = ["when,user_id,price,tags,noise,url,clicked"]
    for hour in rng.permutation(500):
        user, tags = rng.integers(40), "|".join(rng.choice(["a", "b", "c"], rng.integers(1, 3)))
        clicked = "yes" if rng.random() < (user % 2 + tags.count("a")) / 4 else "no"
        when = f"2024-02-{1 + hour // 24:02} {hour % 24:02}:00:00"
        lines.append(f"{when},{user},{rng.random():.2f},{tags},{hour % 3},u{hour},{clicked}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """A run, and what the command has printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(["train", "--data", f"{folder}/log.csv", "--out", f"{folder}/run", *OPTIONS])
    return folder / "run", printed.getvalue()


def test_the_table_names_each_column_with_its_kind_and_how_to_change_it(run):
    rows = [line.split() for line in run[1].splitlines()]
    found = {row[0]: row[1:] for row in rows if row}
    kinds = {"when": "time", "user_id": "categorical", "price": "continuous", "tags": "bag"}
    kinds |= {"noise": "dropped", "url": "dropped", "clicked": "label"}
    assert {name: found[name][0] for name in kinds} == kinds
    assert found["user_id"][1:2] == ["40"]
    assert found["user_id"][-2:] == ["--numeric", "user_id"]
    assert "evaluated on the latest examples, by when" in run[1]
    assert "dates; features: hour, weekday" in " ".join(run[1].split())


def test_the_latest_examples_are_held_out_and_again_by_evaluate(run, capsys):
    facts = json.loads((run[0] / "run.json").read_text())
    assert (facts["holdout"], facts["schema"]["time"]) == ("time", "when")
    assert (facts["train_examples"], facts["eval_examples"]) == (400, 100)
    train_times, times = (
        np.concatenate([b.columns["time"] for b in source.blocks()])
        for source in (
            open_source(facts["data"], like=TrainedRun(run[0]).schema),
            TrainedRun(run[0]).source(None),
        )
    )
    assert len(times) == 100
    assert times.min() == np.sort(train_times)[400]
    main(["evaluate", str(run[0]), "--json"])
    again = json.loads(capsys.readouterr().out)
    metrics = json.loads((run[0] / "metrics.json").read_text())
    assert again["log_loss"] == pytest.approx(metrics["log_loss"], abs=1e-6)


def test_predict_reads_the_columns_as_the_training_did(run, folder, tmp_path, capsys):
    # On their own these lines look different: ids that are one value, tags without a bar.
    head = "clicked,tags,user_id,price,when\n"
    a, b = "no,a|b,7,1,2024-02-05 10:10\n", "no,b|a,7.0,1.0,2024-02-05T11:00+01:00\n"
    for name, lines in (("a", a), ("b", b)):
        (tmp_path / f"{name}.csv").write_text(head + lines)
        main(["predict", str(run[0]), "--data", f"{tmp_path}/{name}.csv"])
    first, second = capsys.readouterr().out.split()
    assert float(first) == pytest.approx(float(second), abs=1e-6)


def test_the_configuration_of_a_run_has_the_options(run):
    config = configure(run[0], {}, [])
    assert (config.label, config.drop) == (["clicked"], ["noise", "url"])
    assert config.time_features == ["hour", "when.weekday"]
    assert configure(run[0], {"drop": ["tags"]}, []).drop == ["tags"]
    schema = configure(run[0], {"schema_file": "x.yaml"}, [])
    assert (schema.schema_file, schema.label, schema.drop) == ("x.yaml", [], [])
    for given, message in (
        (
            {"schema_file": "x.yaml", "time": "t"},
            "--schema: the file determines the columns, got --time",
        ),
        ({"from_run": str(run[0]), "label": ["y"]}, "--from: .* got --label as well"),
        (
            {"from_run": str(run[0]), "positive_label": "y"},
            "--from: .* got --positive-label as well",
        ),
        ({"schema_file": "x.yaml", "time_features": ["hour"]}, "--schema: .* got --time-features"),
    ):
        with pytest.raises(UserError, match=message):
            configure(None, {"data": "x.csv", **given}, [])


def test_a_long_table_shows_all_columns_but_plain_features(tmp_path, capsys):
    table = {f"x{i}": pa.array([i + 0.5, 1.25] * 5) for i in range(100)}
    table |= {
        "odd": pa.array([{"a": 1}] * 10),
        "when": pa.array([None, None, None, 1, 2] * 2, pa.timestamp("s")),
    }
    parquet.write_table(pa.table({**table, "label": [0, 1, 2, 0, 1] * 2}), tmp_path / "x.parquet")
    main(["schema", f"{tmp_path}/x.parquet", "--format", "table", "--drop", "x3"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {row[0]: row[1:3] for row in rows if row}
    assert found["odd"][0] == "dropped"
    assert (found["when"], found["label"]) == (["dropped", "?"], ["label", "?"])
    assert not {"x1", "x3"} & {*found}
    assert found["…"] == ["and", "100"]
