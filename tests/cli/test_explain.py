"""`twml-ops explain`: a table and a section of the report."""

import json
import re
import shutil

import pytest

from tests.trained_runs import write_criteo, write_libsvm
from twml_ops.cli import main

pytestmark = pytest.mark.usefixtures("bare_runs")


@pytest.fixture
def run(libsvm_run, tmp_path):
    """A copy, since the command adds to the report."""
    return shutil.copytree(libsvm_run, tmp_path / "run")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write_libsvm(tmp_path_factory.mktemp("data") / "o.svm", 200, seed=9)


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """Criteo lines whose third number has doubled and whose second category is gone."""
    path = tmp_path_factory.mktemp("data") / "d.tsv"
    write_criteo(path, 400, seed=5)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    for fields in lines:
        fields[3] = str(2 * int(fields[3])) if fields[3] else ""
        fields[15] = ""
    path.write_text("\n".join("\t".join(fields) for fields in lines) + "\n")
    return f"criteo:{path}"


def explained(capsys, *arguments):
    capsys.readouterr()
    main(["explain", *map(str, arguments), "--json"])
    found = json.loads(capsys.readouterr().out)
    return found, {f["name"]: f for f in found["features"]}


def test_only_features_that_drifted_are_reported_as_drifted(criteo_run, drifted, tmp_path, capsys):
    page = tmp_path / "page.html"
    data = json.loads((criteo_run / "run.json").read_text())["data"]
    found, features = explained(
        capsys, criteo_run, "--data", drifted, "--against", data, "--out", page
    )
    assert len(features) == 39
    assert found["examples"] == [400, 500]
    importances = [f["importance"] for f in found["features"]]
    assert importances == sorted(importances, reverse=True)
    assert features["I3"]["psi"] > 0.25
    assert features["C2"]["psi"] > 0.25
    assert features["C2"]["coverage"] == 0
    assert features["C2"]["weight_norm"] is None
    assert features["C2"]["coverage_before"] > 0.8
    for name in features.keys() - {"I3", "C2"}:
        f = features[name]
        assert 0.75 < f["coverage"] < 1
        assert f["missing"] == pytest.approx(1 - f["coverage"])
        assert f["weight_norm"] > 0
        assert f["psi"] < min(0.25, 4 * f["psi_by_chance"])
    assert "<h2>Strongest drift</h2>" in page.read_text(encoding="utf-8")


def test_the_report_has_one_section_however_often_it_is_explained(run, other):
    before = (run / "report.html").read_text(encoding="utf-8")
    main(["explain", str(run)])
    once = (run / "report.html").read_text(encoding="utf-8")
    assert once.count("<h2>Features</h2>") == 1
    assert "population stability" not in once
    main(["explain", str(run), "--against", other])
    twice = (run / "report.html").read_text(encoding="utf-8")
    assert twice.count("<h2>Features</h2>") == 1
    assert "<h2>Strongest drift</h2>" in twice
    assert twice.count('src="data:image/svg+xml;base64,') == before.count("<img") + 2
    assert "http" not in re.sub(r"base64,[^\"]*", "", twice)
    assert (
        re.sub(r"<!-- twml-ops explain.*/twml-ops explain -->\n", "", twice, flags=re.S) == before
    )


def test_with_out_the_report_of_the_run_is_unchanged(run, tmp_path):
    before = (run / "report.html").read_text(encoding="utf-8")
    main(["explain", str(run), "--out", str(tmp_path / "new" / "page.html")])
    assert (run / "report.html").read_text(encoding="utf-8") == before
    assert "<h2>Features</h2>" in (tmp_path / "new" / "page.html").read_text(encoding="utf-8")


def test_the_table_has_a_row_a_feature(run, other, capsys):
    capsys.readouterr()
    main(["explain", str(run), "--against", other, "--top", "5"])
    out = capsys.readouterr().out
    assert "PSI" in out
    assert len(re.findall(r"^ id \d+ ", out, re.M)) == 5
    assert "and 3 more" in out
    assert "\x1b" not in out


def test_sparse_ids_are_named_by_number_and_never_missing(run, other, capsys):
    found, features = explained(capsys, run)
    assert found["against"] is None
    assert set(features) == {f"id {i}" for i in range(8)}
    assert all(f["psi"] is None for f in features.values())
    _, features = explained(capsys, run, "--data", other, "--against", f"{other}[0:200]")
    for f in features.values():
        assert f["missing"] is None
        assert 0.3 < f["coverage"] < 0.7
        assert f["psi"] == 0
        assert f["weight_norm"] > 0


def test_wrong_use_is_one_line_and_leaves_the_report_unchanged(run, drifted, tmp_path, capfd):
    damaged = shutil.copytree(run, tmp_path / "damaged")
    (damaged / "report.html").write_text("no page")
    cases = [
        ([tmp_path], "not a finished run"),
        ([run, "--data", f"libsvm:{tmp_path}/none"], "none"),
        ([run, "--against", f"libsvm:{tmp_path}/none"], "none"),
        ([run, "--against", drifted], "adds continuous features"),
        ([run, "--rows", "0"], "--rows"),
        ([damaged], "is not a report of twml-ops"),
    ]
    before = (run / "report.html").read_bytes()
    for arguments, message in cases:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(["explain", *map(str, arguments)])
        err = capfd.readouterr().err
        assert exit_.value.code in (1, 2)
        assert err.count("\n") == 1, err
        assert message in err
    assert (run / "report.html").read_bytes() == before
    assert not [p for p in run.iterdir() if "partial" in p.name]
