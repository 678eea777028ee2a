"""The orders of additions that the number of workers and the division of tables do not change."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops, optimizers
from twml_ops.distribute.parameter_server import micro_batches, row_classes
from twml_ops.distribute.parameter_server.encoding import ShardEntries, WireTypes

BATCHES = 8
GRADIENTS = np.random.default_rng(0).normal(size=(BATCHES, 200)).astype("f")


def in_graph(function):
    """The result in a graph, which TensorFlow optimizes."""
    gradients = [tf.constant(g) for g in GRADIENTS]
    return tf.function(lambda *found: function(found), autograph=False)(*gradients)


def reference(gradients):
    level = list(gradients)
    while len(level) > 1:
        level = [a + b for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def as_rows(gradients):
    """Each number a row of its own, which every third gradient lacks in part."""
    return [
        tf.IndexedSlices(g[i % 3 * 20 :, None], tf.range(i % 3 * 20, g.shape[0]), [200, 1])
        for i, g in enumerate(gradients)
    ]


def test_neighbors_are_added_first_and_the_sums_of_workers_are_subtrees():
    want = reference(GRADIENTS)
    for own in (1, 2, 4, 8):
        parts = range(0, BATCHES, own)
        sums = in_graph(
            lambda g, own=own, parts=parts: micro_batches.tree_sum(
                [micro_batches.tree_sum(g[i : i + own]) for i in parts]
            )
        )
        np.testing.assert_array_equal(sums, want)
    assert np.any(in_graph(tf.add_n) != want)


def test_rows_are_added_in_the_same_tree():
    want = micro_batches.tree_sum(as_rows(GRADIENTS))
    np.testing.assert_array_equal(want.values[40:, 0], reference(GRADIENTS)[40:])
    halves = [micro_batches.tree_sum(as_rows(GRADIENTS)[i : i + 4]) for i in (0, 4)]
    found = micro_batches.tree_sum(halves)
    np.testing.assert_array_equal(found.values, want.values)
    np.testing.assert_array_equal(found.indices, np.arange(200))
    running = functools.reduce(lambda a, b: micro_batches.tree_sum([a, b]), as_rows(GRADIENTS))
    assert np.any(running.values != want.values)


@pytest.mark.parametrize("binary", [False, True])
def test_products_do_not_depend_on_the_parts_of_the_rows(binary):
    rng = np.random.default_rng(1)
    splits = np.concatenate([[0], np.sort(rng.integers(0, 300, 9)), [300]])
    ids, values = rng.integers(0, 50, 300), rng.normal(size=300).astype("f")
    table = rng.normal(size=(50, 5)).astype("f")
    none = np.zeros([0], "f")

    def product(parts):
        of_parts = []
        for part in range(parts):
            own = ids % parts == part
            before = np.concatenate([[0], np.cumsum(own)])
            entries = ShardEntries(
                tf.constant(ids[own] // parts),
                tf.constant(none if binary else values[own]),
                tf.constant(before[splits]),
            )

            def product_of(e, part=part):
                return ops.sparse_linear(
                    e.ids, None if binary else e.values, e.row_splits, table[part::parts]
                )

            classes = row_classes.ROW_CLASSES // parts
            of_parts.append(row_classes.multiply(product_of, entries, binary, 5, classes))
        return row_classes.add_halves(of_parts)

    want = product(1)
    weights = None if binary else values
    np.testing.assert_allclose(
        want, ops.sparse_linear(ids, weights, splits, table), rtol=2e-5, atol=2e-5
    )
    for parts in (2, 4, 8):
        np.testing.assert_array_equal(product(parts), want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batches": 3}, "power of two .* got 3 with 1 worker$"),
        ({"micro_batches": 0}, "power of two .* got 0 with"),
        ({"micro_batches": 2, "workers": 4}, "multiple of the number of workers, got 2 with 4"),
        ({"workers": 3, "micro_batches": 4}, "got 4 with 3 workers"),
        ({"mode": "async"}, "needs mode=\"sync\", got 'async'"),
        ({"pipeline": True}, "needs pipeline=False"),
        ({"exchange_every": 2}, "needs exchange_every=1, got 2"),
        ({"wire": WireTypes(tf.float32, tf.int8)}, 'gradient_wire_dtype "float32", got int8'),
        ({"optimizer": optimizers.SGD(clipnorm=1.0)}, "without clipnorm and global_clipnorm"),
    ],
)
def test_options_with_which_bits_would_depend_on_the_workers_are_refused(change, message):
    options = {
        "micro_batches": 4,
        "workers": 1,
        "mode": "sync",
        "wire": WireTypes(tf.float32, tf.float32),
        "pipeline": False,
        "exchange_every": 1,
        "optimizer": optimizers.SGD(),
    }
    micro_batches.check_options(**options)
    with pytest.raises(ValueError, match=message):
        micro_batches.check_options(**{**options, **change})
