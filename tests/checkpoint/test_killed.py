"""A training that is killed at any moment continues with the bits of one that was not."""

import signal

import numpy as np
import pytest

from tests.child_process import ChildProcess
from twml_ops.checkpoint import CheckpointManager

KILLED = (-signal.SIGKILL, -signal.SIGXFSZ, -signal.SIGPROF)
ALL_STEPS = 40
CPU_MS = 1500  # of a whole training after its beginning, on a fast machine


@pytest.fixture(scope="module")
def child():
    with ChildProcess(["-m", "tests.checkpoint.killed_training"]) as child:
        yield child


def result(folder):
    with np.load(folder / "result.npz") as values:
        return {name: values[name].tobytes() for name in values.files}


@pytest.fixture(scope="module")
def undisturbed(child, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    status, _ = child.request({"folder": str(folder), "moment": "end"})
    assert status == 0
    return result(folder)


def assert_same(found, undisturbed, start):
    """The bits of all variables; without metrics if the last process had no step left to do."""
    names = [n for n in undisturbed if start < ALL_STEPS or not n.startswith("metrics/")]
    assert {n: found.get(n) for n in names} == {n: undisturbed[n] for n in names}


def moments(seed):
    """Random moments: of operations on files, after steps, at bytes of a file, of the time used."""
    rng = np.random.default_rng(seed)
    while True:
        yield f"event:{rng.integers(1, 120)}"
        yield f"bytes:{rng.integers(1, 6)}:{rng.integers(0, 5000)}"
        yield f"step:{rng.integers(1, 12)}"
        yield f"cpu:{rng.integers(1, CPU_MS)}"


def check_killed(child, folder, undisturbed, kills, seed, policy, in_file=False):
    """Kills trainings, each of which is continued until it has ended, and then another one."""
    run, step, killed, ended, accepted = folder / "run", 0, 0, 0, 0
    for moment in moments(seed):
        request = {"folder": str(run), "policy": policy, "in_file": in_file}
        status, start = child.request({**request, "moment": moment})
        assert status in (0, *KILLED), moment
        assert start == step  # what was complete stays complete, and nothing else is accepted
        killed += status != 0
        # The file that a killed process has left is used again.
        assert len(list((run / "rows").glob("*.rows"))) <= in_file
        checkpoints = CheckpointManager(run / "checkpoints").all()
        for checkpoint in checkpoints:
            checkpoint.verify()
        accepted += len(checkpoints)
        step = max([step, *(c.manifest.step for c in checkpoints)])
        if status == 0:
            assert_same(result(run), undisturbed, start)
            run, step, ended = folder / f"run{killed}-{ended}", 0, ended + 1
        if killed == kills:
            break
    request = {"folder": str(run), "policy": policy, "in_file": in_file}
    status, start = child.request({**request, "moment": "end"})
    assert status == 0
    assert_same(result(run), undisturbed, start)
    print(
        f"policy {policy}: {killed} kills, {ended + 1} trainings reached the end with the bits of "
        f"the undisturbed one; {accepted} checkpoints were found and verified after kills"
    )


@pytest.mark.parametrize(("policy", "kills"), [("full", 3), ("intermittent", 2)])
def test_training_that_is_killed_five_times_reaches_the_same_bits(
    child, tmp_path, undisturbed, policy, kills
):
    check_killed(child, tmp_path, undisturbed, kills, seed=1, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["full", "consecutive", "intermittent"])
def test_training_that_is_killed_a_hundred_times_reaches_the_same_bits(
    child, tmp_path, undisturbed, policy
):
    check_killed(child, tmp_path, undisturbed, 100, seed=2, policy=policy)


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow, id="hundred")])
def test_training_of_a_table_in_a_file_that_is_killed_reaches_the_bits_of_one_in_memory(
    child, tmp_path, undisturbed, kills
):
    check_killed(child, tmp_path, undisturbed, kills, 3, "intermittent", in_file=True)
