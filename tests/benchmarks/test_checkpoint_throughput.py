"""The benchmark of training beside checkpoints, with tiny sizes."""

import json
import sys

import pytest

from benchmarks import checkpoint_throughput


@pytest.mark.slow
def test_every_way_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = "--rows 60000 --units 8 --rounds 3 --json out.json --page p.md"
    monkeypatch.setattr(sys, "argv", ["checkpoint_throughput", *options.split()])
    checkpoint_throughput.main()
    lines = {line["way"]: line for line in json.loads((tmp_path / "out.json").read_text())["ways"]}
    assert list(lines) == list(checkpoint_throughput.WAYS)
    sizes = [line["MB"] for line in lines.values()]
    assert sizes[0] == sizes[1] > sizes[2] > sizes[3] > 0
    for line in lines.values():
        assert line["throughput"] <= 1
        assert line["stall ms"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "p.md"]
    assert "| consecutive, 8 bits | " in (tmp_path / "p.md").read_text()
