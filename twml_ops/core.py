"""The kernels on NumPy arrays, without TensorFlow."""

from twml_ops._core import *  # noqa: F403
from twml_ops._core import QuantileSketch as QuantileSketch  # a class, which annotations name
from twml_ops._core import mdl_boundaries as mdl_boundaries
