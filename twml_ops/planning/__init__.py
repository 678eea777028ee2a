"""What a step of distributed training sends, and so costs, before anything runs. No TensorFlow."""

from twml_ops.planning.job import Cluster, Compute, Job, Table
from twml_ops.planning.predict import Choice, Prediction, choose, predict
from twml_ops.planning.traffic import STRATEGIES, Message, messages

__all__ = [
    "STRATEGIES",
    "Choice",
    "Cluster",
    "Compute",
    "Job",
    "Message",
    "Prediction",
    "Table",
    "choose",
    "messages",
    "predict",
]
