"""Training in a cluster with parameter servers, as its chief begins and ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from twml_ops import models
from twml_ops.data import Source, TrainingParts
from twml_ops.distribute import ChiefBuiltModel, HybridTrainer, exit_on_cluster_error
from twml_ops.training.callbacks import POINTS_PER_EPOCH, SNAPSHOTS, EarlyStopping
from twml_ops.training.cluster import checkpoint_dir, cluster_options
from twml_ops.training.cluster_evaluator import (
    copy_evaluations,
    read_evaluations,
    wait_for_evaluation,
)
from twml_ops.training.cluster_speed import ClusterSpeed, fits_one_process, speed_of_one_process
from twml_ops.training.cluster_stages import ClusterStages, epoch_name
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import joined, summed_loss, weighted
from twml_ops.training.model import make_optimizer
from twml_ops.training.reporter import Reporter
from twml_ops.training.results import (
    Epoch,
    FittedModel,
    History,
    LossPoint,
    SpeedComparison,
)
from twml_ops.training.runners import STEPS_PER_EXECUTION, Monitored
from twml_ops.training.sources import LARGE_BATCH_SIZE
from twml_ops.training.stage_training import OnStep, Stage, StageTraining
from twml_ops.training.tree_share import TreeShares, shares_of


class ClusterRunner:
    """Trains with the other processes of the cluster, on its chief. See `Runner`.

    Args:
        stages: the stages of the run, of which this is the next one.
        config: configuration of the training, with a learning rate.
        parts: the training data in two parts; None: there are no validation data.
        final: whether this trains the model of the run. Otherwise `fit` returns no model.
        reporter: is told what happens.
    """

    def __init__(
        self,
        stages: ClusterStages,
        config: RunConfig,
        parts: TrainingParts | None,
        final: bool,
        reporter: Reporter,
    ) -> None:
        self._stages, self._config, self._parts = stages, config, parts
        self._final, self._reporter = final, reporter
        self._number = stages.next_number
        self._shares: list[TreeShares | None] | None = None  # made in the first evaluation

    def build(self, make_model: Callable[[], tf.keras.Model]) -> ChiefBuiltModel:
        """The model that the chief builds and the other workers read."""
        return self._stages.build(make_model, self._number)

    def fit(
        self,
        model: ChiefBuiltModel,
        train: Any,
        monitored: Monitored | None,
        *,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
    ) -> FittedModel:
        """Trains a model; see `Runner.fit`.

        The learning rate is constant, and each epoch ends with averaged weights, as in one process,
        unless the rows of tables are in files.
        Of the callbacks the beginning and the end of the training and the ends of epochs are
        called. Epochs that an earlier process of the run has trained are not trained again, but
        their results are told to the callbacks.

        If `TF_CONFIG` has an evaluator, the chief waits until it has evaluated the last checkpoint,
        and copies its results to the folder of the run.
        """
        is_fit = self._parts is not None and train is self._parts.fit
        stage = Stage(self._config, "fit" if is_fit else "all", epochs, self._final)
        self._stages.announce(self._number, stage)
        training = self._stages.begin(self._number, stage, model, train)
        history = History(monitored=monitored.name if monitored else "evaluation")
        size = train.num_examples()
        shown = _Trained(training)
        for callback in callbacks:
            callback.set_params({"epochs": epochs})
            callback.set_model(shown)
            callback.on_train_begin()
        stopping = [c for c in callbacks if isinstance(c, EarlyStopping) and c.restores]
        with exit_on_cluster_error():
            for number in range(1, epochs + 1):
                name = epoch_name(self._number, number)
                ended = self._stages.decisions.get(name)
                shown.is_current = ended is None
                if ended is None:
                    ended = self._run_epoch(training, number, history, monitored, model)
                else:
                    history.train_loss += [LossPoint(*point) for point in ended["train_loss"]]
                epoch = Epoch(size, ended["seconds"], ended["metrics"])
                history.epochs.append(epoch)
                history.examples += size
                history.seconds += epoch.seconds
                if "val_loss" in epoch.metrics:
                    point = LossPoint(history.examples, epoch.metrics["val_loss"])
                    history.monitored_loss.append(point)
                ended["stop"] = True
                try:
                    _check_finite(epoch.metrics, number)
                    for callback in callbacks:
                        callback.on_epoch_end(number - 1, epoch.metrics)
                    if stopping and stopping[0].best_epoch == number and shown.is_current:
                        self._stages.keep_weights(number, stopping[0].checkpoint_state())
                    ended["stop"] = shown.stop_training or number == epochs
                finally:  # the other workers wait for it
                    self._stages.decisions.decide(name, partial(dict, ended))
                self._reporter.epoch(number, epochs, epoch, history.monitored)
                if ended["stop"]:
                    break
            if self._final and (kept := self._stages.load_member(self._number)) is not None:
                copy_evaluations(checkpoint_dir(self._stages.out), self._stages.folder)
                return kept
            if self._final:
                training.end(number)
            shown.is_current = True
            for callback in stopping:
                self._stages.restore_weights(callback)
            for callback in callbacks:
                callback.on_train_end()
            if not self._final:
                return FittedModel(None, history)
            fitted = self._exported(training, number, train, history)
            if self._config.ensemble > 1:
                self._stages.keep_member(self._number, fitted)
            return fitted

    def _exported(self, training: Any, epochs: int, train: Source, history: History) -> FittedModel:
        """The trained model of the run, as a plain Keras model, and the record of its training."""
        history.parsed_bytes, history.data_bytes = train.parsed_bytes, train.num_bytes()
        trained = training.export()
        self._take_evaluations(training, epochs * training.steps, history)
        return FittedModel(trained, history)

    def _run_epoch(
        self,
        training: Any,
        number: int,
        history: History,
        monitored: Monitored | None,
        model: ChiefBuiltModel,
    ) -> dict[str, Any]:
        """Trains an epoch; returns its record, as JSON has it, for a process that is restarted."""
        points: list[LossPoint] = []
        steps, first = training.steps, (number - 1) * training.steps
        record = self._recorder(training, number, points)
        trainer = training.joined()
        in_memory = self._config.storage is None
        if self._final and number == 1 and in_memory and fits_one_process(model.count_params()):
            record = _both(record, self._compare_speeds(training, history, model))

        def due(step: int) -> int:  # as `WeightAveraging`, at the same steps as in one process
            done = step - first
            done = steps if done >= steps else done // STEPS_PER_EXECUTION * STEPS_PER_EXECUTION
            return max(0, math.floor(SNAPSHOTS * (done - steps / 2) / (steps - steps / 2)))

        before = trainer.steps_done()
        taken = due(before)

        def on_step(step: int, loss: Any) -> None:
            nonlocal before, taken
            loss = loss / len(training.labels)  # the mean, of which the workers train the sum
            record(step, loss)
            bar.add((step - before) * training.step_examples, f"loss {loss:.4f}")
            before = step
            if in_memory and due(step) > taken:  # averages take the memory of whole tables
                taken = due(step)
                trainer.take_snapshot()

        start = time.perf_counter()
        title = f"epoch {number}/{training.epochs}"
        with self._reporter.bar(title, steps * training.step_examples) as bar:
            training.run_epoch(number, on_step)
        if in_memory:
            trainer.use_average()
        trainer.save_if_possible(number * steps)
        seconds = time.perf_counter() - start
        losses = [point.loss for point in points]
        # A chief that was started again may find that all steps of the epoch are done.
        metrics = {"loss": sum(losses) / len(losses)} if losses else {}
        if monitored is not None:
            metrics |= self._evaluate(trainer, model, monitored)
        history.train_loss += points
        return {"seconds": seconds, "metrics": metrics, "train_loss": [list(p) for p in points]}

    def _evaluate(
        self, trainer: HybridTrainer, model: ChiefBuiltModel, monitored: Monitored
    ) -> dict[str, float]:
        labels = monitored.source.schema.labels
        batches = monitored.source.dataset(LARGE_BATCH_SIZE, layout=models.layout_of(model))
        batches = joined(batches, labels)
        several = {"multi_label": True, "num_labels": len(labels)} if len(labels) > 1 else {}
        if monitored.name == "validation":
            batches = weighted(batches, self._config.positive_weight)
        found = trainer.evaluate(
            batches,
            [
                tf.keras.metrics.BinaryCrossentropy(name="val_loss"),
                tf.keras.metrics.AUC(name="val_auc", **several),
            ],
        )
        metrics = {name: found[name] for name in ("val_loss", "val_auc")}
        if monitored.name != "validation":
            return metrics
        if self._shares is None:  # traced once
            self._shares = [shares_of(trainer.model, self._config, trainer.predict)]
        return metrics | (self._shares[0].better(batches) if self._shares[0] else {})

    def _take_evaluations(self, training: StageTraining, last: int, history: History) -> None:
        """Adds the results of the evaluator to the learning curve and to the folder of the run."""
        folder, timeout = checkpoint_dir(self._stages.out), cluster_options(self._config).timeout
        if self._stages.cluster.evaluators:
            with self._reporter.phase("waiting for the evaluator"):
                wait_for_evaluation(folder, last, timeout)
        lines = read_evaluations(folder)
        if lines:
            history.monitored_loss = [
                LossPoint(line["step"] * training.step_examples, line["log_loss"])
                for line in lines
                if line["log_loss"] is not None
            ]
        copy_evaluations(folder, self._stages.folder)

    def _compare_speeds(
        self, training: StageTraining, history: History, model: ChiefBuiltModel
    ) -> OnStep:
        """A function that compares the speed of the cluster with that of one process."""
        config = self._config
        context = training.trainer.contexts()[0]

        def measure() -> float:
            assert config.learning_rate is not None
            optimizer = make_optimizer(config.optimizer, config.learning_rate)
            batches = training.dataset(context, 0)
            loss = summed_loss(training.labels)
            return speed_of_one_process(
                training.build(), optimizer, loss, batches, config.fixed_batch_size
            )

        def report(speeds: SpeedComparison) -> None:
            history.speeds = speeds
            self._reporter.speeds(speeds)

        steps = training.steps * training.epochs
        speed = ClusterSpeed(measure, report, steps, training.step_examples)
        return lambda step, _: speed.on_step(step)

    def _recorder(self, training: StageTraining, number: int, points: list[LossPoint]) -> OnStep:
        """A function that adds the loss of each step to the learning curve."""
        options, steps = cluster_options(self._config), training.steps
        interval = max(1, steps // POINTS_PER_EPOCH)
        if options.mode != "sync":  # the other workers do steps between the steps of this one
            interval = max(1, interval // len(self._stages.cluster.workers))
        calls = max(1, interval // options.trainer_arguments()["steps_per_execution"])
        losses: list[float] = []

        def record(step: int, loss: Any) -> None:
            losses.append(float(loss))
            if len(losses) < calls and step < number * steps:
                return
            points.append(LossPoint(step * training.step_examples, sum(losses) / len(losses)))
            losses.clear()

        return record


class _Trained:
    """What callbacks see of a model, whose tables may be on servers.

    Attributes:
        stop_training: whether a callback has ended the training.
        is_current: whether the weights are the ones of the epoch that callbacks are told of.
    """

    def __init__(self, training: Any) -> None:
        self._training, self.stop_training, self.is_current = training, False, True

    @property
    def weights(self) -> list[Any]:
        """The weights where they are; none if they are of another epoch."""
        found: list[Any] = self._training.weights if self.is_current else []
        return found


def _check_finite(metrics: Mapping[str, float], epoch: int) -> None:
    loss = metrics.get("loss", metrics.get("val_loss", 0.0))
    if not math.isfinite(loss):
        raise UserError(f"the loss became {loss} in epoch {epoch}: try a lower --learning-rate")


def _both(first: OnStep, second: OnStep) -> OnStep:
    def on_step(step: int, loss: Any) -> None:
        first(step, loss)
        second(step, loss)

    return on_step
