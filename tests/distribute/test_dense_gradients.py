import numpy as np
import tensorflow as tf

from twml_ops.distribute.hybrid import dense_gradients


def test_unpacking_returns_the_packed_gradients_bit_for_bit():
    rng = np.random.default_rng(0)
    shapes = [(2, 3), (), (5,), (0, 4)]
    gradients = [tf.constant(rng.normal(size=s).astype("f")) for s in shapes]
    gradients.append(tf.constant(rng.normal(size=[3]), tf.float64))
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1]), tf.constant([6, 3]))
    gradients.insert(1, slices)
    packed = dense_gradients.pack(gradients)
    assert [tuple(g.shape) for g in packed[:2]] == [(12,), (3,)]
    assert packed[2] is slices
    for want, got in zip(gradients, dense_gradients.unpack(packed, gradients), strict=True):
        if want is slices:
            assert got is slices
        else:
            assert want.dtype == got.dtype
            np.testing.assert_array_equal(want, got)


def test_nothing_is_packed_of_nothing():
    assert dense_gradients.unpack(dense_gradients.pack([]), []) == []
