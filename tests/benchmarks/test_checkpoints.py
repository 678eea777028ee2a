"""The benchmark of checkpoints, with tiny sizes."""

import json
import sys

from benchmarks import checkpoints


def test_every_policy_and_width_is_measured(tmp_path, monkeypatch, capsys):
    target = tmp_path / "measured.json"
    options = "--rows 2000 --units 8 --intervals 2 --rounds 3 --test-batches 2"
    options += f" --warm-up 2 --more-steps 2 --page {tmp_path / 'p.md'} --json"
    monkeypatch.setattr(sys, "argv", ["checkpoints", *options.split(), str(target)])
    checkpoints.main()
    lines = {
        (x["policy"], x["bits"], x["slot bits"]): x
        for x in json.loads(target.read_text())["policies"]
    }
    assert len(lines) == len(checkpoints.POLICIES) * len(checkpoints.WIDTHS)
    full = lines["full", 32, 32]
    assert (full["write ratio"], full["capacity ratio"], full["log loss change"]) == (1, 1, 0)
    for policy in checkpoints.POLICIES:
        assert lines[policy, 32, 32]["log loss change"] == 0
        assert lines[policy, 32, 32]["log loss change later"] == 0
        ratios = [lines[(policy, *bits)]["write ratio"] for bits in checkpoints.WIDTHS]
        assert ratios == sorted(ratios)
    assert "| intermittent | 8 | 4 | " in (tmp_path / "p.md").read_text()
