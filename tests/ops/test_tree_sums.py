"""`ops.tree_sums` equals the kernel on NumPy arrays, which tests/core compares with a reference."""

import numpy as np
import pytest
import tensorflow as tf

from tests.core.test_tree_sums import numbers, random_trees
from twml_ops import core, ops


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    return numbers(rng, 300, 4), rng.integers(0, 2, 300), random_trees(rng, 2, 5, 4, 4)


@pytest.mark.parametrize("own", [False, True])
def test_the_op_equals_the_kernel_in_eager_mode_and_in_a_function(data, own):
    x, ensembles, nodes = data
    ensembles = ensembles if own else ensembles[:0]
    want = core.tree_sums(x, ensembles, **nodes, max_depth=4)

    def call(x, ensembles):
        return ops.tree_sums(x, ensembles, **nodes, max_depth=4)

    np.testing.assert_array_equal(call(x, ensembles), want)
    specs = [tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.int64)]
    np.testing.assert_array_equal(tf.function(call, specs)(x, ensembles), want)


def test_the_static_shape_is_that_of_the_rows(data):
    _, _, nodes = data

    @tf.function
    def call(x):
        y = ops.tree_sums(x, tf.zeros([0], tf.int64), **nodes, max_depth=4)
        assert y.shape.as_list() == [x.shape[0]]
        return y

    call.get_concrete_function(tf.TensorSpec([None, 4]))
    call.get_concrete_function(tf.TensorSpec([7, 4]))


def test_bad_nodes_are_an_error(data):
    x, _, nodes = data
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"roots\[0\] = -998 is out of range"):
        ops.tree_sums(x, [], **nodes | {"roots": nodes["roots"] - 999}, max_depth=4)


def test_there_is_no_gradient(data):
    x, ensembles, nodes = data
    with tf.GradientTape() as tape:
        x = tf.constant(x)
        tape.watch(x)
        y = ops.tree_sums(x, ensembles, **nodes, max_depth=4)
    assert tape.gradient(y, x) is None
