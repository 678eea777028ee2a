"""The batcher: every example once, in the promised order, in batches of the promised size."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import pairwise
from twml_ops.data import batches, order
from twml_ops.data.block import Block, Categories, Numbers, Rows
from twml_ops.data.layouts import Fields, Ragged
from twml_ops.data.schema import Schema

GROUPS = {"sparse": True, "categorical": False}


def blocks_of(sizes):
    """Blocks whose example i has label i % 2 and (i % 4) entries of id i."""
    first = 0
    for size in sizes:
        i = np.arange(first, first + size)
        ids = np.repeat(i, i % 4)
        rows = Rows.from_lengths(i % 4, ids, ids.astype(np.float32))
        tokens = Rows.from_lengths(np.ones(size, np.int64), i)
        yield Block((i % 2).astype(np.float32), {"sparse": rows, "categorical": tokens})
        first += size


def read(sizes, batch_size, seed=None, drop_remainder=False, known=True):
    def blocks(epoch):
        in_order = blocks_of(sizes)
        if seed is None:
            return in_order
        return order.shuffled_windows(in_order, seed, epoch, 0, 0, batch_size)

    return batches.dataset(
        blocks,
        Ragged(GROUPS),
        batch_size,
        drop_remainder=drop_remainder,
        num_examples=sum(sizes) if known else None,
    )


def order_of(dataset):
    seen = []
    for features, labels in dataset:
        i = features["categorical_ids"].flat_values.numpy()
        assert labels.numpy()[:, 0].tolist() == (i % 2).tolist()
        expected = [[int(k)] * int(k % 4) for k in i]
        assert features["sparse_ids"].to_list() == expected
        assert features["sparse_values"].to_list() == expected
        seen.append(i.tolist())
    return seen


def flat(dataset):
    return [i for batch in order_of(dataset) for i in batch]


@pairwise(
    sizes=[[], [1], [7], [8], [9], [3, 0, 5, 1], [16, 1, 16], [40]], batch_size=[1, 7, 8, 9, 100]
)
def test_batches_are_the_examples_in_order(sizes, batch_size):
    total = sum(sizes)
    for drop in (False, True):
        stop = total // batch_size * batch_size if drop else total
        expected = [list(range(a, min(a + batch_size, total))) for a in range(0, stop, batch_size)]
        dataset = read(sizes, batch_size, drop_remainder=drop)
        assert order_of(dataset) == expected
        assert dataset.cardinality().numpy() == len(expected)


def test_shuffling_is_a_permutation_given_by_seed_and_pass():
    first, again, other = (read([20, 30], 8, seed=s) for s in (1, 1, 2))
    passes = [flat(first) for _ in range(2)]
    for seen in passes:
        assert sorted(seen) == list(range(50))
    assert passes[0] != passes[1]
    assert passes == [flat(again) for _ in range(2)]
    assert passes[0] != flat(other)


def test_shuffling_stays_within_its_window(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_ROWS", 16)
    seen = order_of(read([20, 30], 8, seed=0))
    assert [len(b) for b in seen] == [8, 8, 8, 8, 8, 8, 2]
    for window in range(0, 48, 16):
        part = seen[window // 8] + seen[window // 8 + 1]
        assert sorted(part) == list(range(window, window + 16))


def test_a_dropped_remainder_makes_the_shape_static():
    features, labels = read([20], 8, drop_remainder=True).element_spec
    assert labels.shape == [8, 1]
    assert features["sparse_ids"].shape.as_list() == [8, None]
    assert features["sparse_ids"].row_splits_dtype == tf.int64
    features, labels = read([20], 8).element_spec
    assert labels.shape.as_list() == [None, 1]


def test_an_unknown_number_of_examples_is_an_unknown_cardinality():
    dataset = read([5], 2, known=False)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert order_of(dataset) == [[0, 1], [2, 3], [4]]


def test_batches_without_a_pipeline_are_the_elements_of_a_dataset():
    piped, eager = read([5, 0, 6], 4), batches.eager(blocks_of([5, 0, 6]), Ragged(GROUPS), 4)
    for expected, found in zip(piped, eager, strict=True):
        tf.nest.assert_same_structure(expected, found, expand_composites=True)
        flat = (tf.nest.flatten(element, expand_composites=True) for element in (expected, found))
        for a, b in zip(*flat, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", ["ragged", "fields"])
def test_tensorflow_never_gets_the_memory_of_a_block(layout):
    """TensorFlow 2.15 writes into the row splits that a generator has yielded."""
    rows = Rows.from_lengths(np.array([0, 2, 1]), np.arange(3), np.ones(3, np.float32))
    bag = Rows.from_lengths(np.array([1, 0, 2]), np.arange(3))
    groups = {
        "continuous": Numbers(np.ones((3, 2), np.float32)),
        "categorical": Categories(np.ones((1, 3), np.int64).T, {1: bag}),
        "sparse": rows,
    }
    columns = {"weight": np.ones(3, np.float32), "row_keys": np.arange(3)}
    block = Block(np.ones(3, np.float32), groups, columns)
    schema = Schema(("a", "b"), ("c", "d"), 8, "l", bags=("d",), weight="weight")
    forms = {"ragged": Ragged(schema.groups, weighted=True), "fields": Fields(schema, keyed=True)}
    got = tf.nest.flatten(forms[layout].arrays(block))
    kept = [block.labels, *columns.values(), groups["continuous"].table]
    for part in (rows, bag, groups["categorical"].rows):
        kept += [part.row_splits, part.ids] + ([] if part.values is None else [part.values])
    kept.append(groups["categorical"].table)
    kept += [groups["continuous"].rows.row_splits, groups["continuous"].rows.values]
    assert len(got) >= 8
    assert not any(np.shares_memory(g, k) for g in got for k in kept)
    assert all(g.flags.c_contiguous for g in got)
