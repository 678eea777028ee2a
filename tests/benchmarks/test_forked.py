"""Copies of this process answer as other processes do, and end with their reasons."""

import json
import os

import pytest

from benchmarks.curve import wire_cost
from benchmarks.distributed import network
from benchmarks.distributed.forked import Fork
from benchmarks.distributed.process import HostError, HostProcess

pytestmark = [
    pytest.mark.one_tf,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="hosts need Linux"),
]
WHY_NOT = network.unavailable(cpu=True)
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts with CPUs: {WHY_NOT}")


def echo():
    while line := os.read(0, 1000):
        os.write(1, line)


@pytest.fixture
def start():
    started = []

    def start(run):
        started.append(HostProcess("copy", lambda log: Fork(run, log)))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_a_copy_answers(start):
    process = start(echo)
    assert process.request({"x": [1, 2]}, 60) == {"x": [1, 2]}
    assert process.request({}, 60) == {}


def test_a_copy_has_a_group_of_its_own_and_no_open_files(start, tmp_path):
    with (tmp_path / "open").open("w") as file:
        number = file.fileno()

        def run():
            try:
                found = os.fstat(number).st_size >= 0
            except OSError:
                found = False
            answer = {"group": os.getpgid(0) == os.getpid(), "open": found}
            os.write(1, json.dumps(answer).encode() + b"\n")

        assert start(run).receive(60) == {"group": True, "open": False}


def test_the_end_of_a_copy_is_an_error_with_its_status_and_log(start):
    def run():
        raise ValueError("why it ends")

    with pytest.raises(HostError, match=r"copy exited with status 1;(.|\n)*why it ends"):
        start(run).receive(60)
    process = start(echo)
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(process._process.pid, 0)


def test_all_threads_of_a_copy_move_to_other_cores(start):
    process, core = start(echo), min(os.sched_getaffinity(0))
    process.request({}, 60)
    process.pin([core])
    assert os.sched_getaffinity(process._process.pid) == {core}


@needs_hosts
@pytest.mark.slow
def test_the_network_of_hosts_costs_more_than_a_loopback():
    found = wire_cost.more_seconds(1e9, os.sched_getaffinity(0))
    assert 0 < found["byte"] < 1e-6
    assert 0 <= found["message"] < 1e-2
