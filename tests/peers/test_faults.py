"""Ranks that are killed, that raise, and that do not answer."""

import contextlib
import itertools
import os
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import kills
from benchmarks.peers.kills import CONSISTENCIES
from tests.peers.jobs import ROOT, TIMEOUT, needs_mpi
from twml_ops._child import EXIT_LOST
from twml_ops.peers import PeerGroup
from twml_ops.peers.launch import mpirun_command, run_job

pytestmark = needs_mpi
KILLS, UNDISTURBED = 5, 4
DEVIATIONS = 8  # of the few jobs without a failure; `python -m benchmarks.peers kills` has many


def start(command, ranks, **options):
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


def finished(job):
    """A job that has come to the end in one start."""
    assert (job["status"], job["starts"]) == (0, 1), job["output"]
    assert job["loss"] is not None, job["output"]
    return job


@pytest.fixture(scope="module")
def is_normal():
    """Whether a loss is within the noise of jobs without a failure."""
    jobs = [[finished(kills.run(c, 1000 + s)) for s in range(UNDISTURBED)] for c in CONSISTENCIES]
    losses = np.array([[job["loss"] for job in of_one] for of_one in jobs])
    means = dict(zip(CONSISTENCIES, losses.mean(axis=1), strict=True))
    noise = np.sqrt(losses.var(axis=1, ddof=1).mean())
    return lambda job: abs(job["loss"] - means[job["consistency"]]) < DEVIATIONS * noise


@pytest.mark.parametrize("seed", range(KILLS))
def test_the_others_reach_the_last_epoch_and_the_loss_of_a_job_without_a_failure(seed, is_normal):
    consistency, deaths = kills.deaths_of(seed)
    job = finished(kills.run(consistency, seed, deaths))
    left = sorted(set(range(kills.RANKS)) - set(deaths))
    assert sorted(job["ranks"]) == left
    assert is_normal(job)
    if consistency == "bsp":
        assert {tuple(each["members"]) for each in job["ranks"].values()} == {tuple(left)}
        assert 1 <= job["shrinks"] <= len(deaths)


def test_the_others_are_dealt_the_items_of_a_rank_that_is_lost():
    """Rank 1 of three is lost after two rounds."""
    ranks = [SimpleNamespace(rank=rank, size=3) for rank in range(3)]
    deals = [PeerGroup.deal(rank, range(11)) for rank in ranks]
    dealt = [[next(deal), next(deal)] for deal in deals]
    ranks[0].size = ranks[2].size = 2
    ranks[2].rank = 1
    assert dealt == [[0, 3], [1, 4], [2, 5]]
    assert [list(deals[0]), list(deals[2])] == [[6, 8, 10], [7, 9]]


def test_ranks_that_are_lost_are_replaced_and_have_the_weights_of_the_others(is_normal):
    """Ranks 0 and 2 die in the first of three epochs, so that others train in their places."""
    deaths = {0: 80, 2: 228}
    job = finished(kills.run("bsp", 0, deaths, max_restarts=2))
    assert (job["finished"], job["joins"]) == ((0, 1, 2, 3), 2)
    ranks = job["ranks"]
    assert {rank for rank, each in ranks.items() if each["joined"]} == set(deaths)
    assert {tuple(each["members"]) for each in ranks.values()} == {(1, 3, 0, 2)}
    assert len({tuple(each["weights"]) for each in ranks.values()}) == 1
    assert is_normal(job)


def rank_program(folder, code, timeout=60):
    """A program of ranks: `code` runs with `group`, `vector` and the number of the start."""
    path = folder / "rank.py"
    path.write_text(
        f"import os\nfrom twml_ops import peers\ngroup = peers.PeerGroup(timeout={timeout})\n"
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


@pytest.mark.parametrize("pause", ["threading.Event().wait()", "os.kill(os.getpid(), 19)"])
def test_a_job_with_a_rank_that_does_not_answer_starts_again(tmp_path, pause):
    """Its other threads run, or the system has stopped all of it."""
    code = f"""
import os, pathlib, threading
if start == 0 and group.rank == 1:
    pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
    {pause}
vector.scatter()
vector.barrier()
"""
    result, output = start(rank_program(tmp_path, code, timeout=3), 2, max_restarts=1)
    assert (result.status, result.starts, result.finished) == (0, 2, (0, 1)), output
    assert "took longer than 3 s" in output
    assert not is_running(int((tmp_path / "pid").read_text()))


LAUNCHER = """
import sys
from twml_ops.peers.launch import run_job
run_job(sys.argv[1:], 2, show=lambda line: print(line, flush=True))
"""


def wait_for_end(pid):
    """Waits until a process that is not this one's child has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            assert select.select([descriptor], [], [], TIMEOUT)[0], f"{pid} is still there"
        finally:
            os.close(descriptor)


@pytest.mark.parametrize("killed", ["the launcher", "mpirun"])
def test_ranks_that_hang_end_with_their_launcher(tmp_path, killed):
    code = """
import threading
print("pids", os.getpid(), os.getppid(), flush=True)
threading.Event().wait()
"""
    program = rank_program(tmp_path, code)
    command = [sys.executable, "-c", LAUNCHER, sys.executable, *program]
    environment = {"TWML_OPS_PEERS_RESTARTS": "0", "PYTHONPATH": str(ROOT)}
    if killed == "mpirun":
        command, more = mpirun_command([sys.executable, *program], 2)
        environment |= more
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        lines = (line.split() for line in process.stdout)
        found = itertools.islice((line[1:] for line in lines if line[:1] == ["pids"]), 2)
        pids = [int(pid) for line in found for pid in line]
        process.kill()
    assert len(set(pids)) == 3  # of two ranks and mpirun
    for pid in set(pids):
        wait_for_end(pid)


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
