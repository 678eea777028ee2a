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


def test_a_gradient_is_what_its_tensors_make():
    dense = tf.reshape(tf.range(6.0), [2, 3])
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1]), tf.constant([6, 3]))
    like = [slices, dense, tf.constant(2.0)]
    tensors = iter([tf.reshape(t, [-1]) for g in like for t in dense_gradients.tensors_of(g)])
    for want in like:
        got = dense_gradients.from_tensors(tensors, want)
        for a, b in zip(
            dense_gradients.tensors_of(want), dense_gradients.tensors_of(got), strict=True
        ):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b)
    assert list(tensors) == []
