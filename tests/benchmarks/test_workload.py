import numpy as np
import pytest

from benchmarks.workload import Workload

SMALL = Workload(input_dim=64, units=4, batch_size=16, row_length=8)


@pytest.mark.parametrize("skew", [0.0, 1.05])
def test_batches_are_valid_csr_and_depend_only_on_the_seed(skew):
    first, again = (SMALL.replace(skew=skew).batches(3, seed=5) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert a.row_splits[0] == 0
        assert a.row_splits[-1] == len(a.ids) == len(a.values)
        assert a.num_rows == 16
        assert np.all(np.diff(a.row_splits) >= 4)
        assert np.all(np.diff(a.row_splits) <= 12)
        assert np.all((a.ids >= 0) & (a.ids < 64))
        assert a.unique == len(set(a.ids.tolist()))
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.values, b.values)
    assert not np.array_equal(first[0].ids[:10], first[1].ids[:10])


def test_a_row_of_one_entry_is_possible():
    (batch,) = SMALL.replace(row_length=1).batches(1)
    np.testing.assert_array_equal(batch.row_splits, np.arange(17))


def test_skewed_ids_repeat():
    wide = SMALL.replace(input_dim=4096, batch_size=256)
    (uniform,), (skewed,) = (wide.replace(skew=s).batches(1) for s in (0.0, 1.2))
    assert np.bincount(skewed.ids).max() > 10 * np.bincount(uniform.ids).max()


def test_active_ids_are_spread_over_the_table():
    (batch,) = SMALL.replace(input_dim=1024, active_ids=64).batches(1)
    assert set(batch.ids % 16) == {0}
    assert batch.ids.max() >= 512
    with pytest.raises(ValueError, match="active_ids must divide input_dim 64, got 48"):
        SMALL.replace(active_ids=48).batches(1)


def test_the_number_of_touched_rows_does_not_depend_on_the_size_of_the_table():
    a, b = (SMALL.replace(input_dim=n, active_ids=64).batches(2) for n in (64, 1024))
    assert [x.unique for x in a] == [x.unique for x in b]
