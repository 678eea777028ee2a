"""What a training in this process leaves as it was."""

import random

import numpy as np
import tensorflow as tf

from twml_ops.training.one_at_a_time import one_at_a_time


def state():
    numpy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tolist(), numpy[2]


def test_random_states_and_the_precision_of_keras_are_as_before_even_after_an_error(fresh_keras):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    before = state()
    for error in (None, ValueError):
        try:
            with one_at_a_time():
                tf.keras.backend.clear_session()
                tf.keras.utils.set_random_seed(5)
                assert state() != before
                if error is not None:
                    raise error
        except ValueError:
            assert error is ValueError
        assert state() == before
        assert tf.keras.mixed_precision.global_policy().name == "mixed_bfloat16"
