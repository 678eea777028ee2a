"""The benchmark of tables in files, with tiny sizes."""

import json
import sys

import pytest

from benchmarks import row_stores, tiered
from benchmarks.tiered_process import Training

SETTING = {
    "rows": 640,
    "units": 4,
    "batch_size": 3,
    "skew": 1.05,
    "batches": 3,
    "ahead": 2,
    "threads": 1,
    "limit": False,
}
CACHE, WARM, STEPS = 448, 4, 5


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_hit_rate_of_a_training_is_that_of_the_simulated_cache(tmp_path, policy):
    setting = SETTING | {"policy": policy, "batch_size": 2}
    storage = {"path": str(tmp_path), "cache_rows": CACHE, "policy": policy, "direct": False}
    training = Training(setting | {"storage": storage}, None)
    training.turn(WARM)
    found = training.turn(STEPS)
    assert len(found["seconds"]) == STEPS
    assert 0 < found["misses"] < found["rows"]
    simulated = tiered.simulate(setting, CACHE, WARM, STEPS)["simulated_hit_rate"]
    assert 1 - found["misses"] / found["rows"] == pytest.approx(simulated)
    assert found["asked"] > CACHE * 8 * SETTING["units"]


def test_a_training_in_memory_has_no_counts():
    found = Training(SETTING | {"storage": None}, None).turn(2)
    assert len(found["seconds"]) == 2
    assert "misses" not in found


@pytest.mark.slow
def test_every_way_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(row_stores.ROOT), prepend=":")
    monkeypatch.setattr(sys, "argv", ["benchmarks/tiered.py"])
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    tiered.main(
        tmp_path, rows=40_000, units=4, batch_size=8, skews="1.05", policies="lru", steps=2,
        rounds=1, warm=2, batches=2, ahead=1, threads=1, limit=False, json_file=out, page=page,
    )  # fmt: skip
    found = json.loads(out.read_text())["results"]
    assert [r["mode"] for r in found] == [tiered.DIRECT, tiered.CACHED]
    for r in found:
        assert r["hit_rate"] == pytest.approx(r["simulated_hit_rate"])
        assert r["of_bound"] > 0
    assert tiered.table(found) in page.read_text()
