import numpy as np
import pytest

from benchmarks import random_row_floor
from benchmarks.bandwidth_floor import Bandwidth
from benchmarks.contender import FORWARD, RULES
from benchmarks.random_row_floor import READ, UPDATE, EntryAccesses, RandomRowProbe
from benchmarks.workload import Workload, make_case

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


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("units", [16, 48, 160])
def test_the_accesses_of_entries_are_the_sums_of_their_rows_and_change_nothing(threads, units):
    workload = WORKLOAD.replace(units=units)
    case = make_case(workload, workload.batches(2), threads)
    before = case.table.copy()
    accesses = EntryAccesses(case)
    runs = {task: accesses.run(task) for task in (FORWARD, *RULES)}
    for i, batch in enumerate(case.batches):
        expected = np.zeros((batch.num_rows, units), np.float32)
        np.add.at(expected, batch.row_indices, before[batch.ids])
        for run in runs.values():
            accesses.output[:] = np.nan
            run(i)
            np.testing.assert_allclose(accesses.output, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(case.table, before)


def test_accesses_need_rows_of_whole_lines():
    with pytest.raises(ValueError, match="multiple of 16, got 24"):
        EntryAccesses(make_case(WORKLOAD, WORKLOAD.batches(1), 1))


@pytest.mark.slow
def test_the_table_has_each_task(tmp_path, capsys):
    random_row_floor.main(threads=1, rounds=1, quick=True, docs=tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert page.count("Zipf 1.05") == page.count("| uniform |") == 1 + len(RULES)
