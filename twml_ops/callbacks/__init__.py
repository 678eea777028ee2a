"""Keras callbacks that make more of one training run than its last weights."""

from twml_ops.callbacks.member_weights import greedy_weights, log_loss_weights
from twml_ops.callbacks.snapshot_ensemble import SnapshotEnsemble

__all__ = ["SnapshotEnsemble", "greedy_weights", "log_loss_weights"]


def __dir__() -> list[str]:
    return sorted(__all__)
