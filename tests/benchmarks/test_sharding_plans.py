"""The benchmark of plans of many tables."""

import numpy as np
import pytest

from benchmarks.distributed.network import unavailable
from benchmarks.sharding_plans import __main__ as sharding_plans
from benchmarks.sharding_plans import ranking
from benchmarks.sharding_plans.generator import ids_of_batch, power_law_job
from twml_ops.planning import ClusterResources, predict_plan
from twml_ops.planning.sharding_axis import TYPICAL_COSTS

pytestmark = pytest.mark.one_tf


def test_batches_have_the_entries_and_the_hot_rows_of_their_tables():
    job = power_law_job(20, seed=1, batch=2000, most_rows=5000)
    for table, (ids, lengths) in zip(job.tables, ids_of_batch(job, 0), strict=True):
        assert len(ids) == lengths.sum()
        assert len(lengths) == job.batch
        assert ids.min() >= 0
        assert ids.max() < table.input_dim
        np.testing.assert_allclose(lengths.mean(), table.entries, rtol=0.1)
        np.testing.assert_allclose((ids < table.hot_rows).mean(), table.hot_share, atol=0.1)


JOB = {"tables": 5, "seed": 0, "batch": 64, "most_rows": 1000}
HOSTS = ClusterResources(1e8, servers=4, cores=0.3)


def test_random_plans_differ_in_their_ways_and_servers_and_follow_from_the_seed():
    found = ranking.random_plans({**JOB, "tables": 40}, 4, 20, seed=1)
    assert found == ranking.random_plans({**JOB, "tables": 40}, 4, 20, seed=1)
    assert found != ranking.random_plans({**JOB, "tables": 40}, 4, 20, seed=2)
    assert len(set(found.values())) == 20
    for way in ranking.DIVIDED:
        counts = [ranking.ways_of(plan)[way] for plan in found.values()]
        assert min(counts) < 5
        assert max(counts) > 20
    on_first = [sum(t.first == 0 for t in plan) for plan in found.values()]
    assert min(on_first) < 3
    assert max(on_first) > 20


def test_the_correlation_is_that_of_the_ranks():
    planned = ranking.random_plans(JOB, 4, 9, seed=0)
    predicted = {
        name: max(predict_plan(plan, power_law_job(**JOB), HOSTS, TYPICAL_COSTS).seconds)
        for name, plan in planned.items()
    }

    def correlation(measure):
        measured = {name: {"seconds": [measure(s)], "cpu": [0]} for name, s in predicted.items()}
        return ranking.compare(JOB, planned, HOSTS, TYPICAL_COSTS, measured)["correlation"]

    assert correlation(lambda seconds: seconds**3) == pytest.approx(1)
    assert correlation(lambda seconds: 1 - seconds) == pytest.approx(-1)


@pytest.mark.slow
def test_the_steps_of_each_plan_are_measured_with_each_limit():
    why = unavailable(cpu=True)
    if why is not None:
        pytest.skip(f"network namespaces are not available: {why}")
    planned = ranking.random_plans(JOB, 4, 2, seed=0)
    found = ranking.measure(JOB, planned, [HOSTS, HOSTS], rounds=2)
    assert [list(of_cluster) for of_cluster in found] == [list(planned)] * 2
    for of_cluster in found:
        for measured in of_cluster.values():
            assert len(measured["seconds"]) == 2
            assert len(measured["cpu"]) == 5
            assert min(*measured["seconds"], *measured["cpu"]) > 0


@pytest.mark.slow
def test_each_plan_is_measured():
    why = unavailable()
    if why is not None:
        pytest.skip(f"network namespaces are not available: {why}")
    planned = sharding_plans.plans(JOB, 4, 2.0)
    found = sharding_plans.measure(JOB, planned, steps=2)
    assert list(found) == list(planned)
    for measured in found.values():
        assert len(measured["cpu"]) == len(measured["sent"]) == 5
        assert sum(measured["ways"].values()) == 5
        assert min(measured["cpu"]) > 0
    sent = {name: sum(measured["sent"]) for name, measured in found.items()}
    assert sent["plan"] < sent["all by row"]
