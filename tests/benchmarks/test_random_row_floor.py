import numpy as np
import pytest

from benchmarks.bandwidth_floor import Bandwidth
from benchmarks.random_row_floor import READ, UPDATE, RandomRowProbe
from benchmarks.workload import Workload

WORKLOAD = Workload(input_dim=64, units=24, batch_size=8, row_length=6)


@pytest.mark.parametrize("threads", [1, 3])
def test_each_pass_visits_the_distinct_rows_of_a_batch_once_and_changes_none(threads):
    table = np.random.default_rng(0).random((64, 24), np.float32)
    before = table.copy()
    batches = WORKLOAD.batches(2)
    probe = RandomRowProbe(table, batches, threads)
    for i, batch in enumerate(batches):
        for total in probe._sums:
            total[:] = 0
        probe.runs()[READ](i)
        expected = before[np.unique(batch.ids)].sum(axis=0)
        np.testing.assert_allclose(np.sum(probe._sums, axis=0), expected, rtol=1e-5)
        probe.runs()[UPDATE](i)
    np.testing.assert_array_equal(table, before)


def test_times_become_bandwidths_of_the_bytes_of_the_rows():
    batches = WORKLOAD.batches(2)
    probe = RandomRowProbe(np.ones((64, 24), np.float32), batches, 2)
    size = np.mean([batch.unique for batch in batches]) * 24 * 4
    assert probe.bandwidth([0, 1], 0.5, 0.25) == Bandwidth(2 * size, 8 * size)


def test_the_probe_leaves_denormals_of_the_process_as_they_are():
    RandomRowProbe(np.ones((64, 24), np.float32), WORKLOAD.batches(1), 1)
    assert np.float32(1e-40) * np.float32(0.5) != 0  # code built with -ffast-math would flush it
