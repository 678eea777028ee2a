"""`find_keys` and `gather_dot`: the ops and the core agree, and hashes of a batch are shared."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, ops

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
POSITIONS = np.array([[0, -1], [3, 2]])
VECTORS = np.array([[1, 2, 3], [-1, 0.5, 0]], np.float32)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_the_ops_equal_the_core(wrap):
    known, keys = np.unique(core.hash_ids(np.arange(1000), 62)), core.hash_ids(np.arange(1200), 62)
    keys = keys.reshape(30, 40)
    np.testing.assert_array_equal(wrap(ops.find_keys)(known, keys), core.find_keys(known, keys))
    found = wrap(ops.gather_dot)(TABLE, POSITIONS, VECTORS)
    np.testing.assert_array_equal(found, core.gather_dot(TABLE, POSITIONS, VECTORS))


def test_shapes_that_are_not_known_stay_open():
    unknown = tf.function(ops.find_keys).get_concrete_function(
        tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 7], tf.int64)
    )
    assert unknown.output_shapes.as_list() == [None, 7]
    dot = tf.function(ops.gather_dot).get_concrete_function(
        tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.int64), tf.TensorSpec(None)
    )
    assert dot.output_shapes.as_list() == [None, None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TABLE, POSITIONS + 1, VECTORS), r"positions\[1, 0\] = 4"),
        ((TABLE, POSITIONS, VECTORS[:, :2]), "vectors must have 3 columns"),
        ((TABLE[0], POSITIONS, VECTORS), "table must have rank 2"),
        ((TABLE, POSITIONS, VECTORS[0]), "vectors must have rank 2"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.gather_dot(*arguments)
