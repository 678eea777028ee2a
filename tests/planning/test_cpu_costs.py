"""The CPU time of the parts of a step, and the costs that measurements show."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twml_ops.planning import CpuCosts, CpuTime, StepParts, fit_costs

pytestmark = pytest.mark.one_tf
PARTS = [f.name for f in dataclasses.fields(StepParts)]
costs = st.lists(st.floats(0, 1e-3), min_size=len(PARTS), max_size=len(PARTS)).map(
    lambda values: StepParts(*values)
)


def random_amounts(count, seed=0):
    """Amounts in which the parts do not vary together."""
    numbers = np.random.default_rng(seed).uniform(0.5, 2, [count, len(PARTS)])
    return [StepParts(*row) for row in numbers.tolist()]


@given(costs)
def test_a_fit_finds_the_costs_of_measurements_without_noise(true):
    amounts = random_amounts(12)
    seconds = [a.times(true).total + 1e-6 * a.step for a in amounts]
    found = fit_costs(amounts, seconds)
    expected = dataclasses.replace(true, step=true.step + 1e-6)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), abs=1e-9)


def test_a_part_that_no_measurement_has_costs_nothing():
    amounts = [StepParts(step=1, entry=e) for e in (1, 100, 1000)]
    found = fit_costs(amounts, [1e-3 + 1e-6 * a.entry for a in amounts])
    expected = StepParts(step=1e-3, entry=1e-6)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected))


def test_no_cost_is_negative_whatever_the_noise_is():
    """The time decreases with the entries; the best costs that are not negative have none."""
    amounts = [StepParts(step=1, entry=e) for e in (0, 1, 2)]
    found = fit_costs(amounts, [3e-3, 2e-3, 1e-3])
    assert found.entry == 0
    assert 1e-3 < found.step < 2e-3  # of relative errors, small times count most


def test_a_share_of_a_core_slows_everything_and_more_cores_what_runs_on_all_of_them():
    time = StepParts(step=1, entry=1000).times(StepParts(step=2e-3, entry=4e-6))
    assert time == CpuTime(serial=2e-3, parallel=pytest.approx(4e-3))
    assert time.elapsed(0.2) == pytest.approx(30e-3)
    assert time.elapsed(1) == pytest.approx(6e-3)
    assert time.elapsed(4) == pytest.approx(3e-3)


@given(costs, costs, costs)
def test_costs_are_the_same_after_json(alone, worker, server):
    before = CpuCosts(alone, worker, server)
    after = CpuCosts.from_json(json.loads(json.dumps(before.to_json())))
    for process in ("alone", "worker", "server"):
        of = dataclasses.astuple(getattr(before, process))
        assert dataclasses.astuple(getattr(after, process)) == pytest.approx(of)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "costs must have microseconds by part for alone, worker, server; got None"),
        ({"alone": {}, "worker": {}}, "got None for server"),
        ({"alone": {}, "worker": {}, "server": {"gpu": 1}}, "got 'gpu': 1 for server"),
        ({"alone": {"step": "1"}, "worker": {}, "server": {}}, "got 'step': '1' for alone"),
        ({"alone": {"step": [1]}, "worker": {}, "server": {}}, r"got 'step': \[1\] for alone"),
        ({"alone": {"step": -1}, "worker": {}, "server": {}}, "step must not be negative, got -1e"),
    ],
)
def test_other_json_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        CpuCosts.from_json(values)
