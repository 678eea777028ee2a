"""The optimizers by name."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops.layers import SparseLinear
from twml_ops.training.errors import UserError
from twml_ops.training.model import learning_rate_of, make_optimizer, optimizer_names


@pytest.mark.parametrize("name", optimizer_names())
def test_every_optimizer_learns_at_its_own_rate(name):
    ids = np.arange(64, dtype=np.int64)[:, None] % 8
    labels = (ids < 4).astype(np.float32)
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input((1,), dtype="int64")
    outputs = SparseLinear(1, 8, activation="sigmoid")(inputs)
    model = tf.keras.Model(inputs, outputs)
    optimizer = make_optimizer(name, learning_rate_of(name), steps=100)
    model.compile(optimizer, "binary_crossentropy", jit_compile=False)
    before = model.evaluate(ids, labels, verbose=0)
    model.fit(ids, labels, epochs=50, batch_size=32, verbose=0)
    assert model.evaluate(ids, labels, verbose=0) < before - 0.01


def test_unknown_name_is_an_error_that_lists_the_names():
    with pytest.raises(UserError, match="'nosuch': expected one of adagrad"):
        learning_rate_of("nosuch")
