"""Training in this process, by `tf.keras.Model.fit`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console

from twml_ops import models
from twml_ops.checkpoint import State, Stateful, TrainingInterrupted, deferred_interrupt
from twml_ops.cli.errors import UserError
from twml_ops.cli.render.progress import ProgressCallback
from twml_ops.cli.results.history import Epoch, History, LossPoint
from twml_ops.cli.runs import optimizers, saved_slots, tiered_tables
from twml_ops.cli.runs.callbacks import MEAN_LOSS, WeightAveraging, mean_losses
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.class_balance import weighted
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.joined_labels import joined, joined_outputs, summed_loss
from twml_ops.cli.runs.runner import FittedModel, Monitored
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE
from twml_ops.data import InputPosition, Source

STEPS_PER_EXECUTION = 16  # amortizes the cost of a call of Keras' train function
POINTS_PER_EPOCH = 40


class LocalRunner:
    """Trains in this process. See `Runner`.

    Args:
        config: configuration of the run, with a learning rate.
        log_dir: folder of the TensorBoard logs; None: there are none.
        console: terminal on which the progress is shown.
        checkpoints: the checkpoints of the run; None: none are written.
        member: number of the member of an ensemble, from 0.
    """

    def __init__(
        self,
        config: RunConfig,
        log_dir: Path | None,
        console: Console,
        checkpoints: RunCheckpoints | None = None,
        member: int = 0,
    ) -> None:
        self._config, self._log_dir, self._console = config, log_dir, console
        self._checkpoints = checkpoints
        self._fit_phase = f"member {member}" if member else "fit"

    def connect(self) -> None:
        """Does nothing: there is no cluster."""

    def build(self, make_model: Callable[[], tf.keras.Model]) -> tf.keras.Model:
        """The model that `make_model` returns."""
        with tiered_tables.scope(self._config):
            return make_model()

    def fit(
        self,
        model: tf.keras.Model,
        train: Source,
        monitored: Monitored | None,
        *,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
    ) -> FittedModel:
        """Trains a model; see `Runner.fit`.

        The learning rate is constant, and each epoch ends with averaged weights, unless the rows of
        tables are in files: the averages would take the memory of whole tables.
        """
        joint = joined_outputs(model, train.schema.labels)
        history = self._compile(joint, train, monitored)
        self._train(joint, model, train, monitored, epochs, callbacks, history)
        return self._fitted(model, joint, history)

    def _compile(
        self, model: tf.keras.Model, train: Source, monitored: Monitored | None
    ) -> History:
        """Prepares a model for `_train`; returns the record of its training."""
        config, labels = self._config, train.schema.labels
        assert config.learning_rate is not None
        several = {"multi_label": True, "num_labels": len(labels)} if len(labels) > 1 else {}
        metrics = [tf.keras.metrics.AUC(name="auc", **several)]
        is_weighted = train.schema.weight is not None or config.positive_weight != 1
        if is_weighted or several:
            metrics.append(tf.keras.metrics.BinaryCrossentropy(name=MEAN_LOSS))
        model.compile(
            optimizers.create(config.optimizer, config.learning_rate),
            summed_loss(labels),
            **{"weighted_metrics" if is_weighted else "metrics": metrics},
            steps_per_execution=STEPS_PER_EXECUTION,
            jit_compile=False,
        )
        # Keras would create the slots in the first trace of a step, which TensorFlow then repeats.
        model.optimizer.build(model.trainable_variables)
        saved_slots.restore_slots(config, model)
        return History(monitored=monitored.name if monitored else "evaluation")

    def _train(
        self,
        model: tf.keras.Model,
        served: tf.keras.Model,
        train: Source,
        monitored: Monitored | None,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback],
        history: History,
        initial_epoch: int = 0,
    ) -> None:
        """Trains a compiled model up to a number of epochs, unless a callback ends it before.

        `served` is the model before its outputs were joined.
        """
        config, size = self._config, train.num_examples()
        layout, labels = models.layout_of(served), train.schema.labels
        steps = -(-size // config.batch_size)
        validation_data = None
        if monitored is not None:
            monitored.source.num_examples()  # so that its dataset has a length: Keras 2 needs it
            validation_data = monitored.source.dataset(LARGE_BATCH_SIZE, layout=layout)
            validation_data = joined(validation_data, labels)
            if monitored.name == "validation":
                validation_data = weighted(validation_data, config.positive_weight)

        def batches(**at: Any) -> tf.data.Dataset:
            dataset = train.dataset(
                config.batch_size, shuffle=True, seed=config.seed, layout=layout, **at
            )
            dataset = weighted(joined(dataset, labels), config.positive_weight)
            return tiered_tables.read_ahead(dataset, model)

        logs = []
        if self._log_dir is not None:
            directory = str(self._log_dir)
            logs = [tf.keras.callbacks.TensorBoard(directory, write_graph=False, profile_batch=0)]
        with (
            deferred_interrupt(
                self._checkpoints is not None and self._checkpoints.wanted
            ) as interrupt,
            ProgressCallback(self._console, history, size) as progress,
        ):
            averaging = [WeightAveraging(steps)] if config.storage is None else []
            recorder = HistoryCallback(history, size, config.batch_size, progress)
            every = [*averaging, recorder, *callbacks]
            checkpoint = self._checkpoints and self._checkpoints.callback(
                model,
                train.schema,
                served=served,
                examples=size,
                seed=config.seed,
                phase="choice" if monitored and monitored.name == "validation" else self._fit_phase,
                states={type(c).__name__: c for c in every if isinstance(c, Stateful)},
                interrupt=interrupt,
                console=self._console,
            )
            start = InputPosition(config.seed, initial_epoch)
            data = {"x": batches(position=start), "initial_epoch": initial_epoch}
            if checkpoint:
                data = checkpoint.input(model, batches)
            try:
                model.fit(
                    **data,
                    validation_data=validation_data,
                    epochs=epochs,
                    callbacks=[*averaging, recorder, progress, *logs, *callbacks]
                    + ([checkpoint] if checkpoint else []),
                    shuffle=False,  # the dataset is shuffled already
                    verbose=0,
                )
            except TrainingInterrupted:
                assert self._checkpoints is not None
                raise self._checkpoints.interrupted() from None
        if interrupt.requested:  # in the last step or after it
            assert self._checkpoints is not None
            self._checkpoints.interrupted_after_last_step = True

    @staticmethod
    def _fitted(model: tf.keras.Model, joint: tf.keras.Model, history: History) -> FittedModel:
        """The model, which was trained as `joint`."""
        if model is not joint:
            model.compile(joint.optimizer)  # so that the run can save its slots
        return FittedModel(model, history)


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
