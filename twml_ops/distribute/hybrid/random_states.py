"""The states of random layers, which each step of each worker sets."""

from __future__ import annotations

import zlib

import tensorflow as tf

from twml_ops import _keras
from twml_ops.ops._tape import tf_variable


class RandomStates:
    """Gives the random layers of a model a state that depends on the step and the worker only.

    Args:
        model: The model, whose initial states determine a seed each.
        worker: The number of the worker.
    """

    def __init__(self, model: tf.keras.Model, worker: int) -> None:
        own = bytes([worker % 256])
        self._states = [
            (state, zlib.crc32(state.numpy().tobytes() + own))
            for state in map(tf_variable, _keras.random_states(model))
        ]

    def set(self, number: tf.Tensor) -> None:
        """Sets the states. Used in a graph.

        Args:
            number: The run's step, an int64 scalar.
        """
        for state, seed in self._states:
            words = tf.random.stateless_uniform(
                state.shape, [seed, number], minval=None, maxval=None, dtype=state.dtype
            )
            state.assign(words)
