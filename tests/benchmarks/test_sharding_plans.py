"""The benchmark of plans of many tables."""

import numpy as np
import pytest

from benchmarks.distributed.network import unavailable
from benchmarks.sharding_plans import __main__ as sharding_plans
from benchmarks.sharding_plans.generator import ids_of_batch, power_law_job

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


@pytest.mark.slow
def test_each_plan_is_measured():
    why = unavailable()
    if why is not None:
        pytest.skip(f"network namespaces are not available: {why}")
    job = {"tables": 5, "seed": 0, "batch": 64, "most_rows": 1000}
    planned = sharding_plans.plans(job, 4, 2.0)
    found = sharding_plans.measure(job, planned, steps=2)
    assert list(found) == list(planned)
    for measured in found.values():
        assert len(measured["cpu"]) == len(measured["sent"]) == 5
        assert sum(measured["ways"].values()) == 5
        assert min(measured["cpu"]) > 0
    sent = {name: sum(measured["sent"]) for name, measured in found.items()}
    assert sent["plan"] < sent["all by row"]
