"""The default axis is the one with the shorter step, whatever causes the difference."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twml_ops.planning import ClusterResources, Compute, Job, Table, predict
from twml_ops.planning.sharding_axis import (
    EGRESS_PER_CORE,
    LEAST_GAIN,
    TYPICAL_COSTS,
    prefers_rows,
)

pytestmark = pytest.mark.one_tf


def job(units=128, entries=200, batch=512, unique=28_000, **of_job):
    return Job((Table(2**19, units, entries, unique=unique),), batch, **of_job)


def cluster(servers=4, workers=1, egress=EGRESS_PER_CORE, **more):
    return ClusterResources(egress, servers, workers, **more)


@pytest.mark.parametrize(("servers", "workers", "units", "by_row", "more"), [
    (4, 8, 128, True, {"steps_per_call": 8}),
    (4, 8, 128, True, {"steps_per_call": 8, "asynchronous": True}),
    (4, 1, 128, True, {}),
    (2, 1, 400, False, {}),
    (4, 1, 400, False, {}),
])  # fmt: skip
def test_the_axis_is_the_one_that_was_measured_as_faster(servers, workers, units, by_row, more):
    """See "By row and by column" and "From one host to many" in docs/performance.md."""
    assert prefers_rows(job(units), cluster(servers, workers, **more)) == by_row


def test_wide_products_of_few_entries_are_divided_by_column_and_many_entries_by_row():
    assert not prefers_rows(job(512, entries=5, unique=2000), cluster())
    assert prefers_rows(job(8, entries=500), cluster())


def test_entries_that_cost_nothing_leave_the_bytes_to_decide():
    free = dataclasses.replace(
        TYPICAL_COSTS,
        worker=dataclasses.replace(TYPICAL_COSTS.worker, activation=0.0),
        server=dataclasses.replace(TYPICAL_COSTS.server, entry=0.0, activation=0.0),
    )
    for units in (64, 128, 400):
        sends = {
            axis: predict(f"hybrid by {axis}", job(units), cluster(egress=1e6)).wire_seconds
            for axis in ("row", "column")
        }
        by_row = prefers_rows(job(units), cluster(egress=1e6), free)
        assert by_row == (sends["column"] > (1 - LEAST_GAIN) * sends["row"])


def test_a_slow_wire_favours_the_axis_that_sends_less():
    fast, slow = (prefers_rows(job(), cluster(egress=e)) for e in (1e10, 3e7))
    assert (fast, slow) == (True, False)


@given(
    st.integers(2, 8), st.integers(1, 8), st.sampled_from([1, 8, 64, 512]),
    st.integers(1, 500), st.booleans(), st.sampled_from([1e7, 1e8, 1e10]),
)  # fmt: skip
def test_columns_are_chosen_where_they_are_predicted_to_save_a_tenth(
    s, w, units, entries, asynchronous, egress
):
    hosts = cluster(s, w, egress, asynchronous=asynchronous)
    j = job(units, entries, 64, unique=None)
    by_row = prefers_rows(j, hosts)
    seconds = {
        axis: predict(f"hybrid by {axis}", j, hosts, Compute(costs=TYPICAL_COSTS)).seconds
        for axis in ("row", "column")
    }
    if units >= s:
        assert by_row == (seconds["column"] > (1 - LEAST_GAIN) * seconds["row"])
    else:
        assert by_row
