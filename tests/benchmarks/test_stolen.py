"""What the hypervisor takes is not the fault of a contender."""

import pytest

from benchmarks import stolen
from benchmarks.timing import Turns, interleave


@pytest.fixture
def took(monkeypatch):
    """Seconds stolen so far, to be set."""
    now = [0.0]
    monkeypatch.setattr(stolen, "seconds", lambda: now[0])
    return now


def test_a_turn_is_disturbed_where_more_than_the_limit_and_a_tick_was_stolen(took):
    watch = stolen.Watch()
    took[0] = 0.01
    assert watch.undisturbed()
    took[0] = 1.0
    assert not watch.undisturbed()


def test_disturbed_turns_do_not_count():
    turns = Turns()
    turns.add([1.0, 2.0], undisturbed=True)
    turns.add([90.0], undisturbed=False)
    turns.add([3.0], undisturbed=True)
    assert (turns.timing().median, turns.timing().calls, turns.timing().disturbed) == (2.0, 3, 1)


def test_where_every_turn_is_disturbed_all_count():
    turns = Turns()
    turns.add([7.0], undisturbed=False)
    assert (turns.timing().median, turns.timing().calls, turns.timing().disturbed) == (7.0, 1, 1)


def test_disturbed_turns_are_made_up_for_but_not_for_ever(took):
    def disturbed(_):
        took[0] += 1.0

    times = interleave({"never": disturbed, "quiet": lambda _: None}, [0], rounds=2)
    assert times["never"].disturbed == 2 * stolen.MOST_TURNS
    assert times["quiet"].disturbed == 0
    assert times["quiet"].calls == 2 * 10


def test_the_kernel_counts_what_is_stolen_or_nothing_is():
    assert stolen.seconds() >= 0
