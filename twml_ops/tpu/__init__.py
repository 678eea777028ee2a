"""Models of this package on TPUs: whether they compile, and tables in `TPUEmbedding`."""

from twml_ops.tpu.check import Verdict, check
from twml_ops.tpu.chips import CHIPS, Chip

__all__ = ["CHIPS", "Chip", "Verdict", "check"]
