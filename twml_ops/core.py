"""The kernels on NumPy arrays, and `Scorer` for exported models. It does not need TensorFlow."""

from twml_ops._core import *  # noqa: F403
from twml_ops._core import QuantileSketch as QuantileSketch  # a class that annotations refer to
from twml_ops._core import ReuseDistances as ReuseDistances
from twml_ops._core import mdl_boundaries as mdl_boundaries
from twml_ops._scorer import Scorer as Scorer
from twml_ops._scorer import TableStatistics as TableStatistics
