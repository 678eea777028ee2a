"""Training in a cluster with parameter servers, by `twml_ops.distribute.HybridTrainer`."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console

from twml_ops import models
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import run_summary
from twml_ops.cli.results.history import History, LossPoint, SpeedComparison
from twml_ops.cli.runs import cluster, cluster_speed, evaluation_log, optimizers
from twml_ops.cli.runs.class_balance import weighted
from twml_ops.cli.runs.cluster_checkpoints import START, facts_of
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.runner import FittedModel, Monitored
from twml_ops.data import InputPosition, Source
from twml_ops.distribute import ChiefBuiltModel, Cluster, HybridTrainer, exit_on_cluster_error

POINTS_PER_EPOCH = 40
OnStep = Callable[[int, Any], None]


class ClusterRunner:
    """Trains with the other processes of the cluster that `TF_CONFIG` describes. See `Runner`.

    All processes must have the same configuration. A cluster fits one model.

    Args:
        config: configuration of the run, with a learning rate and cluster options.
        folder: folder to which the results of the evaluator are copied.
        out: final folder of the run, beside which the checkpoints are kept.
        console: terminal on which the progress is shown.
        resume: whether checkpoints of another start of the cluster may be continued.
    """

    def __init__(
        self, config: RunConfig, folder: Path, out: Path, console: Console, resume: bool = False
    ) -> None:
        self._config, self._options = config, cluster.options_of(config)
        self._resume = resume
        self._folder, self._out, self._console = folder, out, console

    def connect(self) -> None:
        """Connects this process to the parameter servers."""
        with exit_on_cluster_error():
            Cluster.from_environment().connect(self._options.timeout)

    def build(self, make_model: Callable[[], tf.keras.Model]) -> ChiefBuiltModel:
        """The model that the chief builds and the other workers read."""
        return cluster.build_once(make_model, self._config, self._out)

    def fit(
        self,
        model: ChiefBuiltModel,
        train: Source,
        monitored: Monitored | None,
        *,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
    ) -> FittedModel:
        """Trains a model; see `Runner.fit`. The learning rate reaches 0 at the end.

        If `TF_CONFIG` has an evaluator, the chief waits until it has evaluated the last checkpoint,
        and copies its results to the folder of the run. The evaluator opens the monitored data
        itself. The process of a worker that is not the chief ends here.
        """
        del monitored
        if callbacks:
            raise UserError("a cluster accepts no Keras callbacks: it has no epochs")
        this = Cluster.from_environment()
        config, options = self._config, self._options
        assert config.learning_rate is not None
        steps, step_examples = cluster.steps_of(train, config, epochs)
        checkpoints = cluster.checkpoint_dir(self._out)
        history = History()
        read: list[cluster.WorkerData] = []

        def dataset(context: tf.distribute.InputContext, first_batch: int) -> tf.data.Dataset:
            def batches(part: Source, position: InputPosition) -> tf.data.Dataset:
                dataset = part.dataset(
                    config.batch_size,
                    shuffle=True,
                    seed=config.seed,
                    layout=models.layout_of(model),
                    position=position,
                )
                return weighted(dataset, config.positive_weight)

            index, count = context.input_pipeline_id, context.num_input_pipelines
            if not read:
                read.append(cluster.worker_data(train, index, count))
            return cluster.worker_batches(
                read[0],
                batches,
                seed=config.seed,
                batch_size=config.batch_size,
                first_batch=first_batch,
            )

        start = time.perf_counter()
        with exit_on_cluster_error():
            trainer = HybridTrainer(
                model,
                optimizers.create(config.optimizer, config.learning_rate, steps),
                "binary_crossentropy",
                cluster=this,
                checkpoint_dir=checkpoints,
                checkpoint_policy=config.checkpoint_policy,
                checkpoint_facts={
                    **facts_of(config),
                    "steps": steps,
                    "step_examples": step_examples,
                    "examples": train.num_examples(),
                },
                facts_may_differ=(START,) if self._resume else (),
                **options.trainer_arguments(),
            )
            record = self._recorder(history, train.num_examples(), steps, step_examples)
            if this.is_chief and cluster_speed.fits(model.count_params()):
                context = tf.distribute.InputContext(len(this.workers), 0, len(this.workers))
                compare = self._compare_speeds(
                    history, model, lambda: dataset(context, 0), steps, step_examples
                )
                record = _both(record, compare)
            last = trainer.fit(dataset, steps, record).step
            for data in read:
                history.parsed_bytes = train.parsed_bytes
                history.data_bytes = train.num_bytes()
                run_summary.print_parsed(
                    self._console,
                    history,
                    (data.index, data.count),
                    is_whole=data.is_whole,
                    is_chief=this.is_chief,
                )
            if not this.is_chief:
                trainer.finish()
                sys.stdout.flush()
                os._exit(0)  # threads of TensorFlow may wait for servers that end with the chief
            history.examples = epochs * train.num_examples()
            history.seconds = time.perf_counter() - start
            trained = trainer.export()
            trainer.finish()
        if this.evaluators:
            with self._console.status("waiting for the evaluator"):
                evaluation_log.wait_for_step(checkpoints, min(last, steps), options.timeout)
        for line in evaluation_log.read(checkpoints):
            if line["log_loss"] is not None:
                point = LossPoint(line["step"] * step_examples, line["log_loss"])
                history.monitored_loss.append(point)
        evaluation_log.copy_to_run(checkpoints, self._folder)
        return FittedModel(trained, history)

    def _compare_speeds(
        self,
        history: History,
        model: ChiefBuiltModel,
        batches: Callable[[], tf.data.Dataset],
        steps: int,
        step_examples: int,
    ) -> OnStep:
        """A function that compares the speed of the cluster with that of one process."""
        config = self._config

        def measure() -> float:
            assert config.learning_rate is not None
            optimizer = optimizers.create(config.optimizer, config.learning_rate, steps)
            return cluster_speed.speed_of_one_process(
                model(), optimizer, batches(), config.batch_size
            )

        def report(speeds: SpeedComparison) -> None:
            history.speeds = speeds
            run_summary.print_speeds(self._console, speeds)

        speed = cluster_speed.ClusterSpeed(measure, report, steps, step_examples)
        return lambda step, _: speed.on_step(step)

    def _recorder(self, history: History, size: int, steps: int, step_examples: int) -> OnStep:
        """A function that adds the loss of each step to the learning curve."""
        this = Cluster.from_environment()
        interval = max(1, size // POINTS_PER_EPOCH // step_examples)
        if self._options.mode != "sync":  # the other workers do steps between the steps of this one
            interval = max(1, interval // len(this.workers))
        together = self._options.trainer_arguments()["steps_per_execution"]
        calls = max(1, interval // together)
        losses: list[Any] = []

        def record(step: int, loss: Any) -> None:
            losses.append(loss)
            if len(losses) < calls:
                return
            mean = sum(float(x) for x in losses) / len(losses)
            losses.clear()
            if not math.isfinite(mean):
                raise UserError(f"the loss became {mean}: try a lower --learning-rate")
            history.train_loss.append(LossPoint(step * step_examples, mean))
            if this.is_chief and len(history.train_loss) % POINTS_PER_EPOCH == 0:
                self._console.print(f"step {step:,}/{steps:,}   train loss {mean:.4f}")

        return record


def _both(first: OnStep, second: OnStep) -> OnStep:
    def on_step(step: int, loss: Any) -> None:
        first(step, loss)
        second(step, loss)

    return on_step
