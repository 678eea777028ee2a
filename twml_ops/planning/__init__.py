"""What a step of distributed training sends, and so costs, before anything runs. No TensorFlow."""

from typing import TYPE_CHECKING

from twml_ops._deprecated import deprecated_aliases
from twml_ops.planning.job import ClusterResources, Compute, Job, Table
from twml_ops.planning.predict import Choice, Prediction, choose, predict
from twml_ops.planning.traffic import STRATEGIES, Message, messages

__all__ = [
    "STRATEGIES",
    "Choice",
    "ClusterResources",
    "Compute",
    "Job",
    "Message",
    "Prediction",
    "Table",
    "choose",
    "messages",
    "predict",
]

if not TYPE_CHECKING:
    __getattr__ = deprecated_aliases(__name__, {"Cluster": "ClusterResources"})
