"""The phases of a training and their wall times."""

import subprocess
import sys

import pytest

from twml_ops._phases import Phases, phase


def work():
    sum(range(300_000))


def test_a_phase_within_a_phase_counts_once_and_those_of_one_name_are_added():
    ended = []
    phases = Phases(lambda name, seconds: ended.append(name))
    with phases.recording(), phase("outer"):
        for _ in range(2):
            with phase("inner"):
                work()
    assert ended == ["inner", "inner", "outer"]
    assert list(phases.seconds) == ["inner", "outer"]
    assert all(seconds > 0 for seconds in phases.seconds.values())
    assert sum(phases.seconds.values()) <= phases.total()


def test_phases_within_a_whole_one_are_parts_of_it():
    phases = Phases()
    with phases.recording(), phase("trials", whole=True):
        with phase("trees"), phase("deeper"):
            work()
        with phase("more"):
            work()
    with phases.recording(), phase("next"):
        pass
    assert list(phases.seconds) == ["trials", "next"]


def test_a_phase_that_fails_is_not_recorded_and_the_ones_around_it_go_on():
    phases = Phases()
    with phases.recording(), phase("outer"):
        with pytest.raises(KeyError), phase("inner"):
            raise KeyError
        with phase("second"):
            pass
    with phase("after"):  # nothing records
        pass
    assert list(phases.seconds) == ["second", "outer"]


def test_the_start_of_a_command_is_that_of_its_process():
    """The child waits for its parent before it imports anything of this package."""
    program = (
        "import sys, time; sys.stdin.readline(); loaded = time.perf_counter()\n"
        "from twml_ops import _phases\n"
        "print(_phases.process_start() <= loaded <= time.perf_counter())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="go\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
