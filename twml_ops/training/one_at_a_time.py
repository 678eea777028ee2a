"""Trainings in several threads of a process, which wait for each other."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_training = threading.RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Runs its block while no other thread is in it, and keeps the random state of the process.

    A training sets the seeds of Python, NumPy and TensorFlow and clears the session of Keras, which
    all belong to the whole process: two trainings at the same time would draw each other's numbers.
    Afterwards the generators of Python and NumPy go on as before, and Keras has the precision of
    before.
    """
    import tensorflow as tf

    with _training:
        of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        policy = tf.keras.mixed_precision.global_policy()
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
            tf.keras.mixed_precision.set_global_policy(policy)
