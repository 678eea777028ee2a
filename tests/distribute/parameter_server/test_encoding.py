import numpy as np
import pytest
import tensorflow as tf

from twml_ops.distribute.parameter_server import encoding
from twml_ops.planning import Job, Table


def test_unpacking_returns_the_packed_gradients_bit_for_bit():
    rng = np.random.default_rng(0)
    shapes = [(2, 3), (), (5,), (0, 4)]
    gradients = [tf.constant(rng.normal(size=s).astype("f")) for s in shapes]
    gradients.append(tf.constant(rng.normal(size=[3]), tf.float64))
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1]), tf.constant([6, 3]))
    gradients.insert(1, slices)
    packed = encoding.pack_gradients(gradients)
    assert [tuple(g.shape) for g in packed[:2]] == [(12,), (3,)]
    assert packed[2] is slices
    for want, got in zip(gradients, encoding.unpack_gradients(packed, gradients), strict=True):
        if want is slices:
            assert got is slices
        else:
            assert want.dtype == got.dtype
            np.testing.assert_array_equal(want, got)


@pytest.mark.parametrize("name", encoding.WIRE_DTYPES)
def test_rows_are_what_their_tensors_make(name):
    rows = [np.random.default_rng(n).normal(size=(n, 3)).astype("f") for n in (4, 0, 1)]
    dtype = tf.as_dtype(name)
    tensors = [t for each in rows for t in encoding.encode_rows(tf.constant(each), dtype)]
    sent = iter([tf.reshape(t, [-1]) for t in tensors])
    for want in rows:
        got = encoding.decode_rows(sent, 3, dtype)
        assert (got.shape, got.dtype) == (want.shape, tf.float32)
        np.testing.assert_allclose(got, want, rtol=0, atol=0 if name == "float32" else 0.02)
    assert list(sent) == []
    numbers = sum(t.dtype.size * int(tf.size(t)) for t in tensors)
    wire = Job((Table(8, 3),), 1, activation_bytes=dtype.size)
    assert numbers == wire.bytes_of_products(5 * 3, 5)


def test_nothing_is_packed_of_nothing():
    assert encoding.unpack_gradients(encoding.pack_gradients([]), []) == []


def test_a_gradient_is_what_its_tensors_make():
    dense = tf.reshape(tf.range(6.0), [2, 3])
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1]), tf.constant([6, 3]))
    like = [slices, dense, tf.constant(2.0)]
    tensors = iter([tf.reshape(t, [-1]) for g in like for t in encoding.tensors_of_gradient(g)])
    for want in like:
        got = encoding.gradient_of_tensors(tensors, want)
        for a, b in zip(
            encoding.tensors_of_gradient(want), encoding.tensors_of_gradient(got), strict=True
        ):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b)
    assert list(tensors) == []
