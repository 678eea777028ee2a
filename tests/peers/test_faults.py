"""Ranks that are killed, that raise, and that do not answer."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.peers.jobs import ROOT, TIMEOUT, needs_mpi
from tests.peers.survivor import EPOCHS, STEPS, loss
from twml_ops._child import EXIT_LOST
from twml_ops.peers.launch import mpirun_command, run_job

pytestmark = needs_mpi
SLOW = pytest.mark.slow
RANKS, MOST_DEATHS = 4, 2
CONSISTENCIES = ("bsp", "async", "ssp")
UNDISTURBED, KILLS, KILLS_IN_CI = 4, 100, 5
DEVIATIONS = 4  # of the undisturbed runs, by which the loss may be larger than their mean


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


def is_running(pid):
    """Whether a process has a memory; one that has ended but was not waited for has none."""
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def train(folder, consistency, seed, deaths, max_restarts=0, ranks=RANKS):
    """Runs a job; returns its result, what its ranks wrote, and the loss of their mean weights."""
    command = ["-m", "tests.peers.survivor", str(folder), consistency, str(seed)]
    command += [str(n) for death in deaths.items() for n in death]
    result, output = start(command, ranks, max_restarts=max_restarts)
    assert (result.status, result.starts) == (0, 1), output
    files = {int(p.stem): json.loads(p.read_text()) for p in folder.glob("*.json")}
    assert sorted(files) == list(result.finished)
    assert {each["epoch"] for each in files.values()} == {EPOCHS}
    weights = np.mean([each["weights"] for each in files.values()], axis=0)
    return result, files, loss(weights)


def undisturbed(folder, consistency, seed):
    """The loss of a run without a failure."""
    return train(folder, consistency, 1000 + seed, {}, ranks=RANKS - MOST_DEATHS)[-1]


@pytest.fixture(scope="module")
def largest_loss(tmp_path_factory):
    """Consistency -> the largest loss within the noise of runs without a failure.

    These runs have as many ranks as are left at least: fewer models in an average have more noise.
    """
    losses = np.array(
        [
            [
                undisturbed(tmp_path_factory.mktemp("undisturbed"), consistency, seed)
                for seed in range(UNDISTURBED)
            ]
            for consistency in CONSISTENCIES
        ]
    )
    deviation = np.sqrt(losses.var(axis=1, ddof=1).mean())
    return dict(zip(CONSISTENCIES, losses.mean(axis=1) + DEVIATIONS * deviation, strict=True))


def deaths_of(seed):
    """The consistency, and which ranks die in which step."""
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(RANKS)[: rng.integers(1, MOST_DEATHS + 1)]
    deaths = {int(rank): int(rng.integers(0, EPOCHS * STEPS)) for rank in ranks}
    return str(rng.choice(CONSISTENCIES)), deaths


@pytest.mark.parametrize(
    "seed",
    [*range(KILLS_IN_CI), *(pytest.param(s, marks=SLOW) for s in range(KILLS_IN_CI, KILLS))],
)
def test_the_others_reach_the_target_step_and_the_loss_of_an_undisturbed_run(
    tmp_path, largest_loss, seed
):
    consistency, deaths = deaths_of(seed)
    result, files, reached = train(tmp_path, consistency, seed, deaths)
    left = sorted(set(range(RANKS)) - set(deaths))
    assert sorted(files) == left
    assert reached < largest_loss[consistency]
    if consistency == "bsp":
        assert {tuple(each["members"]) for each in files.values()} == {tuple(left)}
        assert 1 <= result.shrinks <= len(deaths)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=SLOW) for s in range(KILLS // 5)])
def test_lost_ranks_are_replaced_at_the_end_of_an_epoch(tmp_path, largest_loss, seed):
    consistency, deaths = deaths_of(seed)
    result, _, reached = train(tmp_path, consistency, seed, deaths, max_restarts=RANKS)
    assert set(range(RANKS)) - set(deaths) <= set(result.finished)
    assert reached < largest_loss[consistency]


def test_a_rank_that_has_joined_has_the_weights_of_the_others(tmp_path):
    """Ranks 0 and 2 die in the first of three epochs, so that others train in their places."""
    deaths = {0: 20, 2: 57}
    result, files, _ = train(tmp_path, "bsp", 0, deaths, max_restarts=2)
    assert (result.finished, result.joins) == ((0, 1, 2, 3), 2)
    assert {rank for rank, each in files.items() if each["joined"]} == set(deaths)
    assert {tuple(each["members"]) for each in files.values()} == {(1, 3, 0, 2)}
    assert len({tuple(each["weights"]) for each in files.values()}) == 1


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
    code = f"""
import os, pathlib, threading
if start == 0 and group.rank == 1:
    pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
    threading.Event().wait()
vector.scatter()
vector.barrier()
"""
    result, output = start(rank_program(tmp_path, code), 2, max_restarts=1)
    assert (result.status, result.starts, result.finished) == (0, 2, (0, 1)), output
    assert "took longer than 3 s" in output
    assert not is_running(int((tmp_path / "pid").read_text()))


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
