"""Metrics of a calibrated probability: streaming, weighted, mergeable."""

from twml_ops.metrics.calibration import CalibrationRatio
from twml_ops.metrics.entropy import NormalizedEntropy, RelativeCrossEntropy

__all__ = ["CalibrationRatio", "NormalizedEntropy", "RelativeCrossEntropy"]
