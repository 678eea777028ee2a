"""Crosses of categories and warnings of leaks in `twml-ops train`."""

import json

import numpy as np
import pytest

from twml_ops.cli import main
from twml_ops.models import dcn
from twml_ops.training.config import parse_value
from twml_ops.training.model_options import options_of

pytestmark = pytest.mark.usefixtures("bare_runs")

ROWS, VALUES = 3000, 12
NAMED = ("--no-refit", "--model", "dcn", "--set", "trees=false", "--set")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The label depends on pairs of two categories, and a number tells it."""
    rng = np.random.default_rng(0)
    first, second, third = rng.integers(0, VALUES, (3, ROWS))
    cells = rng.choice([-2.5, 2.5], (VALUES, VALUES))
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-cells[first, third]))).astype(int)
    path = tmp_path_factory.mktemp("data") / "clicks.csv"
    with path.open("w") as file:
        file.write("label,user,hour,site,told\n")
        for row in zip(labels, first, second, third, strict=True):
            label, user, hour, site = row
            file.write(f"{label},u{user},h{hour},s{site},{label + rng.random() / 2:.3f}\n")
    return path


def train(source, out, *options):
    main(["train", "--data", f"csv:{source}", "--out", str(out), "--max-epochs", "1", *options])
    return json.loads((out / "run.json").read_text())


@pytest.mark.one_tf
def test_train_chooses_crosses_and_warns_of_leaks(source, tmp_path, capsys):
    schema = tmp_path / "schema.yaml"
    schema.write_text(
        "features:\n"
        + "".join(f"  - {{kind: categorical, name: {n}}}\n" for n in ("user", "hour", "site"))
        + "labels: [label]\n"
    )
    facts = train(source, tmp_path / "fields", "--schema", str(schema))
    assert facts["model_options"]["crosses"][0] == "user*site"
    assert facts["leaks"]["features"] == {}
    printed = capsys.readouterr().out
    assert "user*site" in printed
    assert "warning" not in printed

    facts = train(source, tmp_path / "told", *NAMED, "crosses=user*hour")
    assert facts["model_options"] == {"trees": False, "crosses": ["user*hour"]}
    assert list(facts["leaks"]["features"]) == ["told"]
    assert "The feature told alone has an AUC of 1.0000" in capsys.readouterr().out
    assert "The feature told alone" in (tmp_path / "told" / "report.html").read_text()

    main(["explain", str(tmp_path / "told"), "--json"])
    assert list(json.loads(capsys.readouterr().out)["leaks"]) == ["told"]
    assert (tmp_path / "told" / "report.html").read_text().count("The feature told alone") == 2


def test_the_option_takes_names_nothing_and_null():
    option = options_of(dcn)["crosses"]
    assert parse_value("user*site,user*hour", option.type) == ["user*site", "user*hour"]
    assert parse_value("", option.type) == []
    assert parse_value("null", option.type) is None
    assert str(option) == "crosses=null"
