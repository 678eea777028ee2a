"""`twml-ops search` on a small file."""

import json

import pytest

from tests.trained_runs import write_criteo
from twml_ops.cli import main

pytestmark = pytest.mark.usefixtures("bare_runs")

SMALL = [
    *("--field-units", "1,2", "--max-rows", "4,8", "--interactions", "dot"),
    *("--hidden", "2,4", "--hidden", "0,3", "--set", "bottom=", "--set", "dropout=0.25"),
    *("--epochs", "1", "--validation", "random", "--validation-share", "0.3"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_criteo(tmp_path_factory.mktemp("data") / "a.tsv", 400)


def test_train_takes_what_a_search_finds(data, tmp_path, capsys):
    out = tmp_path / "found.json"
    main(["search", "--data", data, "--out", str(out), *SMALL, "--cost", "flops=0.1"])
    shown = capsys.readouterr().out
    assert "warm-up" in shown
    assert "of the largest network" in shown
    config = json.loads(out.read_text())
    options = config["model_options"]
    assert config["model"] == "dhen"
    assert len(options["field_units"]) == 13 + 26
    assert {*options["max_rows"]} <= {4, 8}
    assert options["dropout"] == 0.25
    assert options["hidden"][0] in (2, 4)
    main(["train", "--config", str(out), "--epochs", "1", "--out", str(tmp_path / "run")])
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["model_options"] == options


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cost", "power=1"], "costs must be some of flops, bytes, latency, got 'power'"),
        (["--cost", "flops"], "--cost flops: expected NAME=FACTOR"),
        (["--hidden", "4,2"], "must be ascending integers"),
        (["--field-units", "a"], "--field-units: expected integers separated by commas"),
        (["--set", "hidden=4"], "options must be some of"),
        (["--set", "nosuch=4"], "dhen has no such option"),
        (["--validation", "none"], "search needs validation data"),
        (["--interactions", "nosuch"], "must be a layer or one of"),
        (["--out", "{tmp}"], "is a folder, expected a path for a new file"),
    ],
)
def test_an_error_is_one_line_and_writes_nothing(data, tmp_path, capsys, options, message):
    out = tmp_path / "b.json"
    options = [option.replace("{tmp}", str(tmp_path)) for option in options]
    with pytest.raises(SystemExit):
        main(["search", "--data", data, "--out", str(out), *options])
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()
