"""The kernels on NumPy arrays, and `Scorer` for exported models, without TensorFlow."""

from twml_ops._core import *  # noqa: F403
from twml_ops._scorer import Scorer as Scorer
