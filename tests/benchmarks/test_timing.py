import gc

import pytest

from benchmarks import steal_time
from benchmarks.timing import MAX_CALLS_PER_TURN, Timing, interleave

TURN = 1 + MAX_CALLS_PER_TURN  # calls, the first of them not timed


@pytest.fixture(autouse=True)
def _no_steal_time(monkeypatch):
    monkeypatch.setattr(steal_time, "total_seconds", lambda: 0.0)


def test_all_contenders_process_the_same_batches():
    seen = {"a": [], "b": []}
    times = interleave({n: s.append for n, s in seen.items()}, [3, 4, 5], rounds=4)
    assert seen["a"] == seen["b"] == ([3, 4, 5] * 4 * TURN)[: 3 + 4 * TURN]
    assert times["a"].calls == 4 * MAX_CALLS_PER_TURN
    assert gc.isenabled()


def test_every_round_runs_every_contender_and_their_order_changes():
    turns = []
    runs = {n: lambda i, n=n: turns.append(n) for n in "abcd"}
    interleave(runs, [0], rounds=6)
    rounds = [turns[8:][k : k + 4 * TURN : TURN] for k in range(0, 24 * TURN, 4 * TURN)]
    assert all(sorted(r) == list("abcd") for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1


def test_each_batch_is_processed_once_before_the_first_round():
    seen = []
    interleave({"a": seen.append}, range(8), rounds=1)
    assert seen[:-TURN] == list(range(8))


def test_garbage_collection_is_enabled_again_after_an_error():
    calls = []

    def fails_in_the_rounds(_):
        calls.append(0)
        if len(calls) > 2:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        interleave({"a": fails_in_the_rounds}, [0], rounds=1)
    assert gc.isenabled()


def test_a_timing_is_the_median_and_the_quartiles():
    t = Timing.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (t.lower, t.median, t.upper, t.calls) == (2.0, 3.0, 4.0, 5)
