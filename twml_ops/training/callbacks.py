"""Keras callbacks of trainings in this process: averaged weights, early stopping, the record."""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import placement
from twml_ops.checkpoint import State
from twml_ops.training.errors import UserError
from twml_ops.training.reporter import Bar, Reporter
from twml_ops.training.results import Epoch, History, LossPoint

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
        target: a loss that another model has. Training stops as well when the remaining epochs
            would not reach it, if each gained as much as the better one of the last two: later
            epochs gain less than earlier ones. None: there is none.

    Attributes:
        restores: whether the model has the weights of the best epoch afterwards.
        best_epoch: the epoch with the lowest loss, from 1.
        best_loss: that loss.
    """

    def __init__(self, patience: int, restore: bool, target: float | None = None) -> None:
        super().__init__()
        self._patience, self.restores, self._target = patience, restore, target
        self._last: list[float] = []  # the losses of the last three epochs
        self.best_epoch, self.best_loss = 0, math.inf
        self._weights: list[Any] | None = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compares the loss of the epoch with the lowest one so far."""
        loss = mean_losses(logs)["val_loss"]
        if loss < self.best_loss:
            self.best_epoch, self.best_loss = epoch + 1, loss
            self._weights = None  # before the next copy is made
            self._weights = copied_weights(self.model) if self.restores else None
        elif epoch + 1 - self.best_epoch >= self._patience:
            self.model.stop_training = True
        self._last = [*self._last[-2:], loss]
        if self._target is not None and len(self._last) == 3:
            gain = max(0.0, *(a - b for a, b in itertools.pairwise(self._last)))
            reached = self.best_loss - gain * (self.params["epochs"] - epoch - 1)
            self.model.stop_training |= reached > self._target

    def checkpoint_state(self) -> State:
        """The best epoch so far."""
        weights = {str(i): w for i, w in enumerate(self._weights or [])}
        loss = self.best_loss if self.best_epoch else None
        values = {"best_epoch": self.best_epoch, "best_loss": loss, "last": self._last}
        return State(values, weights)

    def restore_state(self, state: State) -> None:
        """Continues with the best epoch of a checkpoint."""
        self.best_epoch = state.values["best_epoch"]
        self.best_loss = state.values["best_loss"] if self.best_epoch else math.inf
        self._last = list(state.values.get("last", []))  # older checkpoints have none
        weights = [state.arrays[str(i)] for i in range(len(state.arrays))]
        self._weights = weights if self.restores and self.best_epoch else None

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
            restore_weights(self.model, self._weights)
            self._weights = None


def copied_weights(model: tf.keras.Model) -> list[np.ndarray]:
    """The weights of a model. Weights of tables whose rows are in files are in a file as well.

    That file is beside the files of the tables, has no name, and is removed with the array.

    Args:
        model: a model that is built.

    Returns:
        An array for each weight.
    """
    return [_copy(variable) for variable in model.weights]


def restore_weights(model: tf.keras.Model, weights: Sequence[np.ndarray]) -> None:
    """Sets the weights of a model.

    Args:
        model: the model.
        weights: what `copied_weights` has returned.
    """
    for variable, value in zip(model.weights, weights, strict=True):
        placement.placement_of(variable).assign(variable, value)


def _copy(variable: tf.Variable) -> np.ndarray:
    place = placement.placement_of(variable)
    if not isinstance(place, placement.TieredPlacement):
        return np.array(place.read(variable))
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    with tempfile.TemporaryFile(dir=Path(place.storage.path)) as file:
        rows = np.memmap(file, dtype, "w+", shape=place.shape)
    begin = 0
    for piece in place.pieces(variable):
        rows[begin : begin + len(piece)] = piece.numpy()
        begin += len(piece)
    return rows


POINTS_PER_EPOCH = 40


class HistoryCallback(tf.keras.callbacks.Callback):
    """Records the training in a `History`, and ends it when the loss is not finite.

    Callbacks that read the history must follow this one in the list of callbacks.

    Args:
        history: the record to write.
        examples: number of examples in an epoch.
        batch_size: number of examples in a batch.
        progress: the bar of the epoch.
    """

    def __init__(
        self, history: History, examples: int, batch_size: int, progress: ProgressCallback
    ) -> None:
        super().__init__()
        self._progress = progress
        self._history, self._examples, self._batch_size = history, examples, batch_size
        self._interval = max(batch_size, examples // POINTS_PER_EPOCH)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock of the epoch."""
        self._epoch = epoch
        self._begin()

    def _begin(self) -> None:
        self._seen, self._point_seen, self._point_sum = 0, 0, 0.0
        self._seconds: float | None = None
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Adds a point to the learning curve; `logs` has means since the start of the epoch.

        Raises:
            UserError: the loss is NaN or infinite.
        """
        seen = min((batch + 1) * self._batch_size, self._examples)
        loss = mean_losses(logs)["loss"]
        if not math.isfinite(loss):
            raise UserError(
                f"the loss became {loss} within the first {seen:,} examples of epoch "
                f"{self._epoch + 1}: try a lower --learning-rate"
            )
        self._history.examples += seen - self._seen
        self._seen = seen
        if seen - self._point_seen >= self._interval:
            mean = (loss * seen - self._point_sum) / (seen - self._point_seen)
            self._history.train_loss.append(LossPoint(self._history.examples, mean))
            self._point_seen, self._point_sum = seen, loss * seen

    def checkpoint_state(self) -> State:
        """The record so far, and where in the epoch it is."""
        names = ("seen", "point_seen", "point_sum")
        values = {name: getattr(self, f"_{name}") for name in names}
        values["elapsed"] = time.perf_counter() - self._start
        return State({**values, "history": self._history.to_json()})

    def restore_state(self, state: State) -> None:
        """Continues the record of a checkpoint."""
        values = dict(state.values)
        vars(self._history).update(vars(History.from_json(values.pop("history"))))
        self._start = time.perf_counter() - values.pop("elapsed")
        for name, value in values.items():
            setattr(self, f"_{name}", value)
        self._progress.skip(self._seen)

    def on_test_begin(self, logs: Any = None) -> None:
        """Stops the clock: the evaluation after an epoch is not training time."""
        self._seconds = time.perf_counter() - self._start

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the epoch to the history."""
        seconds = self._seconds
        if seconds is None:
            seconds = time.perf_counter() - self._start
        history = self._history
        history.seconds += seconds
        metrics = mean_losses(logs)
        history.epochs.append(Epoch(self._seen, seconds, metrics))
        if "val_loss" in metrics:
            history.monitored_loss.append(LossPoint(history.examples, metrics["val_loss"]))
        self._begin()  # a checkpoint of this moment is one of the beginning of the next epoch


class ProgressCallback(tf.keras.callbacks.Callback):
    """Reports the progress of `fit`: a bar during each epoch, and the epoch after it.

    It is a context manager, which removes the bar when `fit` fails.

    Args:
        reporter: is told what happens.
        history: record of the training. The callback that writes it must run before this one.
        examples: number of examples in an epoch.
    """

    def __init__(self, reporter: Reporter, history: History, examples: int) -> None:
        super().__init__()
        self._reporter, self._history, self._examples = reporter, history, examples
        self._bar: Bar | None = None

    def __enter__(self) -> ProgressCallback:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_bar()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the bar of the epoch."""
        self._shown = self._history.examples
        title = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._context = self._reporter.bar(title, self._examples)
        self._bar = self._context.__enter__()

    def skip(self, examples: int) -> None:
        """Advances the bar by examples of the epoch that were seen before the run was continued."""
        if self._bar is None:  # no epoch is left
            return
        self._bar.add(examples)
        self._shown = self._history.examples

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Advances the bar."""
        assert self._bar is not None
        status = f"loss {float(logs['loss']):.4f}  AUC {float(logs['auc']):.4f}"
        self._bar.add(self._history.examples - self._shown, status)
        self._shown = self._history.examples

    def on_test_begin(self, logs: Any = None) -> None:
        """Removes the bar: the evaluation after an epoch is not training."""
        self._close_bar()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reports the epoch."""
        self._close_bar()
        history = self._history
        self._reporter.epoch(
            epoch + 1, self.params["epochs"], history.epochs[-1], history.monitored
        )

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._context.__exit__(None, None, None)
            self._bar = None
