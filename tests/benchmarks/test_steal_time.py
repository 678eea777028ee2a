"""Turns with steal time do not count, unless there are no others."""

import pytest

from benchmarks import steal_time
from benchmarks.timing import Turns, interleave


@pytest.fixture
def stolen_seconds(monkeypatch):
    """A list whose element is the simulated total steal time."""
    total = [0.0]
    monkeypatch.setattr(steal_time, "total_seconds", lambda: total[0])
    return total


def test_a_turn_is_disturbed_if_more_than_the_limit_and_one_tick_is_stolen(stolen_seconds):
    monitor = steal_time.StealTimeMonitor()
    stolen_seconds[0] = 0.01
    assert monitor.undisturbed()
    stolen_seconds[0] = 1.0
    assert not monitor.undisturbed()


def test_disturbed_turns_do_not_count():
    turns = Turns()
    turns.add([1.0, 2.0], undisturbed=True)
    turns.add([90.0], undisturbed=False)
    turns.add([3.0], undisturbed=True)
    assert (turns.timing().median, turns.timing().calls, turns.timing().disturbed) == (2.0, 3, 1)


def test_all_turns_count_if_all_are_disturbed():
    turns = Turns()
    turns.add([7.0], undisturbed=False)
    assert (turns.timing().median, turns.timing().calls, turns.timing().disturbed) == (7.0, 1, 1)


def test_disturbed_turns_are_repeated_a_limited_number_of_times(stolen_seconds):
    def disturbed(_):
        stolen_seconds[0] += 1.0

    times = interleave({"disturbed": disturbed, "quiet": lambda _: None}, [0], rounds=2)
    assert times["disturbed"].disturbed == 2 * steal_time.MAX_TURN_FACTOR
    assert times["quiet"].disturbed == 0
    assert times["quiet"].calls == 2 * 10


def test_the_total_steal_time_can_be_read_on_every_machine():
    assert steal_time.total_seconds() >= 0
