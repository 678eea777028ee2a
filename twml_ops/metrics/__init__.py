"""Streaming, weighted and mergeable metrics of predicted probabilities."""

from twml_ops.metrics.exact import ExactPRAUC, ExactROCAUC, average_precision, roc_auc
from twml_ops.metrics.ranking import PRAUC, ROCAUC
from twml_ops.metrics.ratios import CalibrationRatio, NormalizedEntropy, RelativeCrossEntropy
from twml_ops.metrics.segmented import Segmented
from twml_ops.metrics.windowed import Windowed

__all__ = [
    "PRAUC",
    "ROCAUC",
    "CalibrationRatio",
    "ExactPRAUC",
    "ExactROCAUC",
    "NormalizedEntropy",
    "RelativeCrossEntropy",
    "Segmented",
    "Windowed",
    "average_precision",
    "roc_auc",
]


def __dir__() -> list[str]:
    return sorted(__all__)
