"""The benchmark of served freshness, with tiny sizes."""

import json
import sys

import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from benchmarks import served_freshness


@pytest.mark.slow
def test_examples_become_visible_in_both_ways(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(served_freshness, "BATCH", 4)  # few of the rows change
    options = "--rows 200000 --seconds 3 --every 0.3 --json out.json --page p.md"
    monkeypatch.setattr(sys, "argv", ["served_freshness", *options.split()])
    served_freshness.main()
    lines = {line["way"]: line for line in json.loads((tmp_path / "out.json").read_text())["ways"]}
    assert list(lines) == list(served_freshness.WAYS)
    for line in lines.values():
        assert line["versions"] > 0
        assert line["examples"] > 0
        assert 0 < line["freshness p50"] <= line["freshness p99"]
    assert lines["changed rows"]["MB"] < lines["whole"]["MB"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "p.md"]
    assert "| changed rows | " in (tmp_path / "p.md").read_text()
