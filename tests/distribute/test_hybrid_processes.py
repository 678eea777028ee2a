"""Hybrid training in real processes, which are killed."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent
KILLED = {"checkpoints": True, "checkpoint_every": 20, "timeout": 60}


def run(**scenarios):
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "hybrid_processes.py"), json.dumps(scenarios)],
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def results():
    both = [[60, "worker", 1], [90, "ps", 1]]
    return run(
        one={"servers": 2, "workers": 1, "steps": 20, "partition_axis": "row"},
        two={"servers": 2, "workers": 2, "steps": 20, "partition_axis": "row"},
        slow={"servers": 1, "workers": 2, "steps": 60, "mode": "async", "slow": 0.2},
        bounded={
            "servers": 1, "workers": 2, "steps": 30, "mode": "hogwild", "slow": 0.05,
            "max_staleness": 2,
        },
        killed={"servers": 2, "workers": 2, "steps": 150, "mode": "async", "kills": both, **KILLED},
        undisturbed={"servers": 2, "workers": 2, "steps": 150, "mode": "async"},
    )  # fmt: skip


def test_two_synchronous_workers_are_one_with_the_joined_batch(results):
    assert results["two"]["deaths"] == []
    for one, two in zip(results["one"]["weights"], results["two"]["weights"], strict=True):
        np.testing.assert_allclose(two, one, rtol=2e-6, atol=2e-6)


def test_a_slow_worker_does_not_stall_asynchronous_training(results):
    own = results["slow"]["own"]
    assert results["slow"]["step"] >= 60
    assert own["0"] > 2 * own["1"]


def test_with_bounded_staleness_no_worker_runs_ahead(results):
    own = results["bounded"]["own"]
    assert results["bounded"]["step"] >= 30
    assert abs(own["0"] - own["1"]) <= 4  # 2, and a step of each that is under way


def test_training_survives_a_killed_worker_and_a_killed_server(results):
    killed = results["killed"]
    assert "hang" not in killed
    assert killed["step"] >= 150
    assert [d[:2] for d in killed["deaths"] if d[2] == 9] == [["worker", 1], ["ps", 1]]
    want, got = (np.mean(list(results[r]["loss"].values())) for r in ("undisturbed", "killed"))
    assert got < want + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("job", ["worker", "ps"])
def test_training_survives_ten_kills_at_random_moments(mode, job):
    rng = random.Random(f"{mode}{job}")
    kills = sorted([rng.randrange(20, 900), job, rng.randrange(2)] for _ in range(10))
    common = {"servers": 2, "workers": 2, "steps": 1000, "mode": mode}
    done = run(killed={**common, "kills": kills, **KILLED}, undisturbed=common)
    assert "hang" not in done["killed"]
    assert done["killed"]["step"] >= 1000
    assert sum(d[2] == 9 for d in done["killed"]["deaths"]) == 10
    want, got = (np.mean(list(done[r]["loss"].values())) for r in ("undisturbed", "killed"))
    assert got < want + 0.05
