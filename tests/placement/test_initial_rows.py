"""Initial values that are made some rows at a time equal values that are made at once."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops.placement import initial_rows as module
from twml_ops.placement.initial_rows import initial_rows

N, PIECE = 1000, 32 * 24 * 4
kinds = tf.keras.initializers
IN_PIECES = [
    kinds.RandomUniform(-0.2, 0.7, seed=1),
    kinds.RandomNormal(0.1, 0.3, seed=2),
    kinds.TruncatedNormal(seed=3),
    kinds.GlorotUniform(seed=4),
    kinds.GlorotNormal(seed=5),
    kinds.HeUniform(seed=6),
    kinds.LecunNormal(seed=7),
    kinds.VarianceScaling(2.0, "fan_out", "untruncated_normal", seed=8),
]
AT_ONCE = [kinds.Orthogonal(seed=1), lambda shape, dtype=None: tf.ones(shape, dtype) * 2]


def collect(initializer, width, dtype):
    found = list(initial_rows(initializer, (N, width), dtype))
    begins = np.cumsum([0, *(len(values) for _, values in found)])
    assert [begin for begin, _ in found] == begins[:-1].tolist()
    assert begins[-1] == N
    assert len(found) > 1
    return tf.cast(tf.concat([values for _, values in found], axis=0), tf.float32).numpy()


def whole(initializer, width, dtype):
    values = tf.cast(initializer((N, width), dtype=dtype), dtype)
    return tf.cast(values, tf.float32).numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", on_both([1, 5, 24], 5))
@pytest.mark.parametrize("initializer", IN_PIECES, ids=lambda i: type(i).__name__)
def test_pieces_have_the_bits_of_the_whole_table(monkeypatch, initializer, width, dtype):
    monkeypatch.setattr(module, "_PIECE_BYTES", PIECE)
    # Otherwise the whole table would be in memory for a moment.
    assert module._sliced(initializer, (N, width), dtype) is not None
    found = collect(initializer, width, dtype)
    np.testing.assert_array_equal(found, whole(initializer, width, dtype))


@pytest.mark.parametrize("initializer", AT_ONCE)
def test_other_initializers_are_evaluated_at_once(monkeypatch, initializer):
    monkeypatch.setattr(module, "_PIECE_BYTES", PIECE)
    assert module._sliced(initializer, (N, 5), "float32") is None
    np.testing.assert_array_equal(
        collect(initializer, 5, "float32"), whole(initializer, 5, "float32")
    )
