"""Keras callbacks of the local runner: averaged weights and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from twml_ops.checkpoint import State
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs import kept_weights

SNAPSHOTS = 8  # of the second half of an epoch
MEAN_LOSS = "mean_loss"


def mean_losses(logs: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of Keras, with weighted means over examples and labels as `loss` and `val_loss`.

    The losses of Keras are sums of weighted losses divided by the number of examples. If there are
    sample weights or several labels, the metric `MEAN_LOSS` divides by the sum of the weights and
    the number of the labels instead.
    """
    metrics = {name: float(value) for name, value in logs.items()}
    for prefix in ("", "val_"):
        if prefix + MEAN_LOSS in metrics:
            metrics[f"{prefix}loss"] = metrics.pop(prefix + MEAN_LOSS)
    return metrics


class WeightAveraging(tf.keras.callbacks.Callback):
    """Ends each epoch with the average of the weights over its second half.

    The average has the effect of a decreasing learning rate: it removes the noise of the last
    steps. Unlike a schedule it does not depend on the number of epochs, so every epoch could be the
    last one, and epochs can be compared with each other. The next epoch continues from the
    average. See Izmailov et al., "Averaging Weights Leads to Wider Optima and Better
    Generalization", UAI 2018; there, too, the average is one of equidistant snapshots.

    A snapshot reads all weights, and the average takes the memory of the trainable weights once.
    Statistics that layers collect in training (`MaxNorm`) are not averaged.

    Args:
        steps: number of steps of an epoch.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts a new average."""
        self._average: list[tf.Variable] = []
        self._taken = self._snapshots = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Takes a snapshot at equal distances in the second half of the epoch.

        Steps that are executed together count as one, so there may be fewer snapshots.
        """
        half = self._steps / 2
        due = math.floor(SNAPSHOTS * (batch + 1 - half) / (self._steps - half))
        if due <= self._taken:
            return
        self._taken = due
        weights = self.model.trainable_variables
        if not self._average:
            self._snapshots = 1
            for w in weights:
                value = tf.cast(tf.convert_to_tensor(w), tf.float32)
                with tf.device(value.device):
                    self._average.append(tf.Variable(value, trainable=False))
            return
        self._snapshots += 1
        for mean, w in zip(self._average, weights, strict=True):
            value = tf.cast(tf.convert_to_tensor(w), tf.float32)
            mean.assign_add((value - mean) / self._snapshots)

    def checkpoint_state(self) -> State:
        """The average so far, for a checkpoint in the middle of an epoch."""
        values = {"taken": self._taken, "snapshots": self._snapshots}
        return State(values, {str(i): mean for i, mean in enumerate(self._average)})

    def restore_state(self, state: State) -> None:
        """Continues with the average of a checkpoint."""
        self._taken, self._snapshots = state.values["taken"], state.values["snapshots"]
        self._average = []
        for i, w in zip(range(len(state.arrays)), self.model.trainable_variables, strict=False):
            with tf.device(tf.convert_to_tensor(w).device):
                self._average.append(tf.Variable(state.arrays[str(i)], trainable=False))

    def on_test_begin(self, logs: Any = None) -> None:
        """Puts the average into the model, before its evaluation."""
        self._use_average()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Puts the average into the model, if there was no evaluation."""
        self._use_average()

    def _use_average(self) -> None:
        if self._average:
            for mean, w in zip(self._average, self.model.trainable_variables, strict=True):
                w.assign(tf.cast(mean, w.dtype))
        self._average = []
        self._taken = self._snapshots = 0


class EarlyStopping(tf.keras.callbacks.Callback):
    """Stops when the loss on the validation data has not decreased for some epochs.

    Unlike that of Keras it restores the best weights at the end of the last epoch, too.

    Args:
        patience: number of epochs in a row without a new lowest loss after which to stop.
        restore: whether the model has the weights of the best epoch afterwards. They are copied
            at each new lowest loss.

    Attributes:
        best_epoch: the epoch with the lowest loss, from 1.
        best_loss: that loss.
    """

    def __init__(self, patience: int, restore: bool) -> None:
        super().__init__()
        self._patience, self._restore = patience, restore
        self.best_epoch, self.best_loss = 0, math.inf
        self._weights: list[Any] | None = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compares the loss of the epoch with the lowest one so far."""
        loss = mean_losses(logs)["val_loss"]
        if loss < self.best_loss:
            self.best_epoch, self.best_loss = epoch + 1, loss
            self._weights = None  # before the next copy is made
            self._weights = kept_weights.copy_of(self.model) if self._restore else None
        elif epoch + 1 - self.best_epoch >= self._patience:
            self.model.stop_training = True

    def checkpoint_state(self) -> State:
        """The best epoch so far."""
        weights = {str(i): w for i, w in enumerate(self._weights or [])}
        loss = self.best_loss if self.best_epoch else None
        return State({"best_epoch": self.best_epoch, "best_loss": loss}, weights)

    def restore_state(self, state: State) -> None:
        """Continues with the best epoch of a checkpoint."""
        self.best_epoch = state.values["best_epoch"]
        self.best_loss = state.values["best_loss"] if self.best_epoch else math.inf
        weights = [state.arrays[str(i)] for i in range(len(state.arrays))]
        self._weights = weights if self._restore and self.best_epoch else None

    def on_train_end(self, logs: Any = None) -> None:
        """Restores the weights of the best epoch.

        Raises:
            UserError: the loss was NaN or infinite after every epoch.
        """
        if not self.best_epoch:
            raise UserError(
                "the loss on the validation data is not finite: try a lower --learning-rate"
            )
        if self._weights is not None:
            kept_weights.give_back(self.model, self._weights)
            self._weights = None
