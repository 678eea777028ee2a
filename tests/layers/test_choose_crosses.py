"""The choice of crosses of categorical fields."""

import numpy as np
import pytest

from twml_ops import layers
from twml_ops.layers import BoostedTrees, choose_crosses
from twml_ops.layers._recent_results import RecentResults
from twml_ops.layers._row_sample import RowSample

ROWS, VALUES = 4000, 20


def planted(effect=2.5, seed=0, rows=ROWS):
    """Four fields: the label depends on the cell of fields 0 and 2; 3 is another name of 0."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, VALUES, (rows, 4))
    codes[:, 3] = (codes[:, 0] * 7 + 3) % VALUES
    logit = effect * rng.choice([-1, 1], (VALUES, VALUES))[codes[:, 0], codes[:, 2]]
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return codes * 10**15, np.arange(rows) * 5, labels


def with_trees():
    return pytest.param(True, marks=pytest.mark.skipif(not BoostedTrees.is_available(), reason=""))


@pytest.mark.parametrize("trees", [False, with_trees()])
def test_a_pair_with_an_effect_is_chosen(trees, monkeypatch):
    if not trees:
        monkeypatch.setattr(BoostedTrees, "is_available", staticmethod(lambda: False))
    first = choose_crosses(*planted(seed=int(trees)))[0]
    assert first in ((0, 2), (2, 3))  # fields 0 and 3 have the same categories


def test_a_cross_has_categories_that_no_part_of_it_has():
    for cross in choose_crosses(*planted()):
        assert not {0, 3} <= set(cross)


def test_crosses_are_seldom_chosen_where_none_predicts():
    """A gain of more than half a standard error is seldom chance."""
    chosen = [bool(choose_crosses(*planted(effect=0.0, seed=seed))) for seed in range(24)]
    assert sum(chosen) <= 4


def test_the_limits_are_kept():
    assert len(choose_crosses(*planted(), max_crosses=1)) == 1
    assert choose_crosses(*planted(), max_crosses=0) == []
    assert all(len(c) == 2 for c in choose_crosses(*planted(), max_size=2))
    # These could be a sample of so many examples that their crosses would not fit into memory.
    assert choose_crosses(*planted(), num_examples=ROWS * 2**22) == []


def test_the_order_of_the_examples_does_not_matter():
    given = planted()
    order = np.random.default_rng(1).permutation(ROWS)
    assert choose_crosses(*(a[order] for a in given)) == choose_crosses(*given) != []


def test_examples_held_out_decide():
    """An effect of the past that is reversed in the examples held out is not used."""
    ids, keys, labels = planted()
    late = np.arange(ROWS) >= ROWS * 3 // 4
    assert choose_crosses(ids, keys, labels, held_out=late)
    reversed_ = np.where(late, 1 - labels, labels)
    assert choose_crosses(ids, keys, reversed_, held_out=late) == []


def test_weights_and_numbers_are_used():
    ids, keys, labels = planted()
    numbers = np.full((ROWS, 1), np.nan, np.float32)
    ones = np.ones(ROWS)
    assert choose_crosses(ids, keys, labels, ones, numbers=numbers) == choose_crosses(
        ids, keys, labels
    )
    told = labels[:, np.newaxis]  # a number from which the label follows leaves nothing to gain
    if BoostedTrees.is_available():
        assert choose_crosses(ids, keys, labels, numbers=told) == []
    assert choose_crosses(ids, keys, labels, np.zeros(ROWS)) == []


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_or_few_examples_have_no_crosses(label):
    ids, keys, labels = planted()
    assert choose_crosses(ids, keys, np.full(ROWS, label)) == []
    assert choose_crosses(ids[:500], keys[:500], labels[:500]) == []


def test_shapes_that_do_not_fit_are_errors():
    ids, keys, labels = planted(rows=10)
    with pytest.raises(ValueError, match=r"have N rows, got .*\(9,\)"):
        choose_crosses(ids, keys, labels[:9])
    with pytest.raises(ValueError, match="held_out must have 10 items, got 3"):
        choose_crosses(ids, keys, labels, held_out=[True] * 3)
    with pytest.raises(ValueError, match="max_size must be at least 2"):
        choose_crosses(ids, keys, labels, max_size=1)


def test_the_crosses_are_those_that_statistics_take():
    ids, keys, labels = planted()
    crosses = choose_crosses(ids, keys, labels)
    layer = layers.TargetStatistics(4, crosses=crosses)
    layer.adapt([((ids, keys), labels)])
    values = layer((ids, keys), training=True).numpy()
    assert values.shape == (ROWS, 4 + len(crosses))
    assert abs(np.corrcoef(values[:, 4], labels)[0, 1]) > 0.3


def test_a_sample_of_rows_depends_on_their_keys_only():
    keys = np.arange(1000) * 3
    order = np.random.default_rng(0).permutation(1000)
    found = []
    for rows in (np.arange(1000), order):
        sample = RowSample(100)
        for part in np.array_split(rows, 7):
            sample.update(keys[part], keys[part] * 2.0)
        found.append(sample.rows())
        assert sample.num_seen == 1000
        assert not sample.is_complete
    assert len(found[0][0]) == 100
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found[0][1], found[0][0] * 2.0)
    assert RowSample(5).rows() == ()


def test_the_results_of_the_last_calls_are_remembered():
    computed = []

    def get(results, value, options=0):
        array = np.array([value])
        return results.get([array], options, lambda: computed.append((value, options)) or value)

    results = RecentResults(2)
    assert [get(results, v) for v in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert computed == [(1, 0), (2, 0), (3, 0), (2, 0)]  # 2 was the oldest when 3 came
    get(results, 2, "other")
    results.clear()
    get(results, 2)
    assert computed[4:] == [(2, "other"), (2, 0)]
