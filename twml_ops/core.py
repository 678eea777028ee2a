"""The kernels on NumPy arrays, without TensorFlow."""

from twml_ops._core import *  # noqa: F403
