"""Ranks that are killed, that raise, and that do not answer."""

import json
import math
import sys

import numpy as np
import pytest

from tests.peers.jobs import ROOT, TIMEOUT, needs_mpi
from twml_ops._child import EXIT_LOST
from twml_ops.peers.launch import mpirun_command, run_job

pytestmark = needs_mpi
RANKS, STEPS = 4, 300


def start(command, ranks=RANKS, **options):
    lines = []
    result = run_job(
        [sys.executable, *command],
        ranks,
        environment={"PYTHONPATH": str(ROOT)},
        show=lines.append,
        timeout=TIMEOUT,
        **options,
    )
    return result, "\n".join(lines)


def survivors(folder, consistency, deaths):
    command = ["-m", "tests.peers.survivor", str(folder), str(STEPS), consistency]
    command += [str(n) for death in deaths.items() for n in death]
    result, output = start(command, max_restarts=0)
    assert result.status == 0, output
    files = {int(p.stem): json.loads(p.read_text()) for p in folder.glob("*.json")}
    return result, files


def check(folder, consistency, deaths):
    result, files = survivors(folder, consistency, deaths)
    left = sorted(set(range(RANKS)) - set(deaths))
    assert sorted(files) == left == list(result.finished)
    for each in files.values():
        assert each["steps"] == STEPS
        assert each["loss"] < 0.66 < math.log(2)  # that of a trained model; untrained: log 2
    if consistency == "bsp":
        assert {tuple(each["members"]) for each in files.values()} == {tuple(left)}
        assert 1 <= result.shrinks <= len(deaths)


@pytest.mark.parametrize(
    ("consistency", "deaths"),
    [("bsp", {2: 57}), ("async", {0: 120, 3: 5})],
    ids=["one of four", "two of four"],
)
def test_the_others_reach_the_target_step_when_ranks_are_killed(tmp_path, consistency, deaths):
    check(tmp_path, consistency, deaths)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_the_others_reach_the_target_step_after_random_kills(tmp_path, seed):
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(RANKS)[: rng.integers(1, 3)]
    deaths = {int(rank): int(rng.integers(0, STEPS)) for rank in ranks}
    check(tmp_path, str(rng.choice(["bsp", "async", "ssp"])), deaths)


def rank_program(folder, code):
    """A program of ranks: `code` runs with `group`, `vector` and the number of the start."""
    path = folder / "rank.py"
    path.write_text(
        "import os\nfrom twml_ops import peers\ngroup = peers.PeerGroup(timeout=3)\n"
        "vector = peers.SharedVector.create([4], group=group)\n"
        "start = int(os.environ['TWML_OPS_PEERS_RESTARTS'])\n" + code
    )
    return [str(path)]


def test_a_rank_that_raises_is_left_out(tmp_path):
    code = """
if group.rank == 1:
    raise ValueError("bad data")
try:
    vector.scatter()
    vector.barrier()
except peers.PeerFailure:
    assert group.survive() == (1,)
vector.scatter()
vector.barrier()
assert len(vector.gather()) == 1
"""
    result, output = start(rank_program(tmp_path, code), 3, max_restarts=0)
    assert (result.status, result.finished, result.shrinks) == (0, (0, 2), 1), output
    assert "bad data" in output


def test_a_job_with_a_rank_that_does_not_answer_starts_again(tmp_path):
    code = """
import threading
if start == 0 and group.rank == 1:
    threading.Event().wait()
vector.scatter()
vector.barrier()
"""
    result, output = start(rank_program(tmp_path, code), 2, max_restarts=1)
    assert (result.status, result.starts, result.finished) == (0, 2, (0, 1)), output
    assert "took longer than 3 s" in output


def test_a_job_whose_ranks_all_fail_has_failed(tmp_path):
    result, output = start(rank_program(tmp_path, "1 / 0\n"), 2, max_restarts=2)
    assert result.status != 0, output
    assert result.starts == 1  # each rank reported an error, which would come again
    assert result.finished == ()
    assert EXIT_LOST == 75


def test_arguments_of_the_launcher_are_checked():
    with pytest.raises(ValueError, match="ranks must be at least 1, got 0"):
        mpirun_command(["true"], 0)
    with pytest.raises(ValueError, match="transport must be 'shared' or 'tcp', got 'udp'"):
        mpirun_command(["true"], 1, "udp")
