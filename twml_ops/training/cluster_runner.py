"""Training in a cluster with parameter servers, and whether one process would be faster."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops import models
from twml_ops.data import InputPosition, Source
from twml_ops.distribute import ChiefBuiltModel, Cluster, HybridTrainer, exit_on_cluster_error
from twml_ops.training.callbacks import POINTS_PER_EPOCH
from twml_ops.training.cluster import (
    WorkerData,
    build_once,
    checkpoint_dir,
    cluster_options,
    copy_evaluations,
    read_evaluations,
    steps_of,
    wait_for_evaluation,
    worker_batches,
    worker_data,
)
from twml_ops.training.cluster_checkpoints import START, cluster_facts
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import weighted
from twml_ops.training.model import make_optimizer
from twml_ops.training.reporter import Reporter
from twml_ops.training.results import FittedModel, History, LossPoint, SpeedComparison
from twml_ops.training.runners import STEPS_PER_EXECUTION, Monitored

OnStep = Callable[[int, Any], None]


class ClusterRunner:
    """Trains with the other processes of the cluster that `TF_CONFIG` describes. See `Runner`.

    All processes must have the same configuration. A cluster fits one model.

    Args:
        config: configuration of the run, with a learning rate and cluster options.
        folder: folder to which the results of the evaluator are copied.
        out: final folder of the run, beside which the checkpoints are kept.
        reporter: is told what happens.
        resume: whether checkpoints of another start of the cluster may be continued.
    """

    def __init__(
        self, config: RunConfig, folder: Path, out: Path, reporter: Reporter, resume: bool = False
    ) -> None:
        self._config, self._options = config, cluster_options(config)
        self._resume = resume
        self._folder, self._out, self._reporter = folder, out, reporter

    def connect(self) -> None:
        """Connects this process to the parameter servers."""
        with exit_on_cluster_error():
            Cluster.from_environment().connect(self._options.timeout)

    def build(self, make_model: Callable[[], tf.keras.Model]) -> ChiefBuiltModel:
        """The model that the chief builds and the other workers read."""
        return build_once(make_model, self._config, self._out)

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
        steps, step_examples = steps_of(train, config, epochs)
        checkpoints = checkpoint_dir(self._out)
        history = History()
        read: list[WorkerData] = []

        def dataset(context: tf.distribute.InputContext, first_batch: int) -> tf.data.Dataset:
            def batches(part: Source, position: InputPosition) -> tf.data.Dataset:
                dataset = part.dataset(
                    config.fixed_batch_size,
                    shuffle=True,
                    seed=config.seed,
                    layout=models.layout_of(model),
                    position=position,
                )
                return weighted(dataset, config.positive_weight)

            index, count = context.input_pipeline_id, context.num_input_pipelines
            if not read:
                read.append(worker_data(train, index, count))
            return worker_batches(
                read[0],
                batches,
                seed=config.seed,
                batch_size=config.fixed_batch_size,
                first_batch=first_batch,
            )

        start = time.perf_counter()
        with exit_on_cluster_error():
            trainer = HybridTrainer(
                model,
                make_optimizer(config.optimizer, config.learning_rate, steps),
                "binary_crossentropy",
                cluster=this,
                checkpoint_dir=checkpoints,
                checkpoint_policy=config.checkpoint_policy,
                checkpoint_facts={
                    **cluster_facts(config),
                    "steps": steps,
                    "step_examples": step_examples,
                    "examples": train.num_examples(),
                },
                facts_may_differ=(START,) if self._resume else (),
                **options.trainer_arguments(),
            )
            record = self._recorder(history, train.num_examples(), steps, step_examples)
            if this.is_chief and fits_one_process(model.count_params()):
                context = tf.distribute.InputContext(len(this.workers), 0, len(this.workers))
                compare = self._compare_speeds(
                    history, model, lambda: dataset(context, 0), steps, step_examples
                )
                record = _both(record, compare)
            last = trainer.fit(dataset, steps, record).step
            for data in read:
                history.parsed_bytes = train.parsed_bytes
                history.data_bytes = train.num_bytes()
                self._reporter.parsed(
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
            with self._reporter.phase("waiting for the evaluator"):
                wait_for_evaluation(checkpoints, min(last, steps), options.timeout)
        for line in read_evaluations(checkpoints):
            if line["log_loss"] is not None:
                point = LossPoint(line["step"] * step_examples, line["log_loss"])
                history.monitored_loss.append(point)
        copy_evaluations(checkpoints, self._folder)
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
            optimizer = make_optimizer(config.optimizer, config.learning_rate, steps)
            return speed_of_one_process(model(), optimizer, batches(), config.fixed_batch_size)

        def report(speeds: SpeedComparison) -> None:
            history.speeds = speeds
            self._reporter.speeds(speeds)

        speed = ClusterSpeed(measure, report, steps, step_examples)
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
                self._reporter.step(step, steps, mean)

        return record


def _both(first: OnStep, second: OnStep) -> OnStep:
    def on_step(step: int, loss: Any) -> None:
        first(step, loss)
        second(step, loss)

    return on_step


CLUSTER_SECONDS = 20.0  # in which the speed of the cluster is measured, after its first call
LEAST_SECONDS = 60.0  # that the training goes on; shorter ones are not interrupted
PROCESS_SECONDS = 2.0  # in which the speed of one process is measured, after its first calls
WARM_UP_EPOCHS = 2  # of `STEPS_PER_EXECUTION` steps
MAX_WEIGHTS = 2**28  # of a model that is copied to the chief; creating larger ones takes long
MEMORY_SHARE = 4  # the copy, with two slots a weight, takes at most this part of the memory


class ClusterSpeed:
    """Measures the speed of a cluster, and once that of one process, on the host of the chief.

    Trainings that soon end are not measured, nor models that are large for one process. A
    measurement that fails has no effect on the training.

    Args:
        measure: () -> examples per second of one process.
        report: called with the result.
        steps: the number of steps of the run.
        step_examples: examples of a step, of all workers together.
        clock: () -> seconds.
    """

    def __init__(
        self,
        measure: Callable[[], float],
        report: Callable[[SpeedComparison], None],
        steps: int,
        step_examples: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._report = measure, report
        self._steps, self._step_examples = steps, step_examples
        self._clock = clock
        self._begin: tuple[int, float] | None = None
        self._ended = False

    def on_step(self, step: int) -> None:
        """Takes note of a step of the run, after which the chief calls this."""
        if self._ended:
            return
        now = self._clock()
        if self._begin is None:
            self._begin = step, now
        seconds = now - self._begin[1]
        if seconds < CLUSTER_SECONDS:
            return
        self._ended = True
        per_second = (step - self._begin[0]) / seconds
        if per_second <= 0 or (self._steps - step) / per_second < LEAST_SECONDS:
            return
        try:
            alone = self._measure()
        except Exception as e:  # the training does not depend on it
            reason = f"{type(e).__name__}: {e}".splitlines()[0]
            warnings.warn(
                f"the speed of one process could not be measured: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self._report(SpeedComparison(per_second * self._step_examples, alone))


def fits_one_process(weights: int) -> bool:
    """Whether a model of so many weights is small enough to be copied to the chief."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return weights <= MAX_WEIGHTS and 3 * 4 * weights <= memory / MEMORY_SHARE


def speed_of_one_process(
    model: tf.keras.Model, optimizer: Any, batches: tf.data.Dataset, batch_size: int
) -> float:
    """Trains a model for some seconds in this process.

    Args:
        model: an uncompiled model, which is changed.
        optimizer: an optimizer that is not used elsewhere.
        batches: batches (x, y) or (x, y, weights), at least one.
        batch_size: examples in a batch.

    Returns:
        Examples per second.
    """
    clock = _Clock()
    model.compile(
        *(optimizer, "binary_crossentropy"),
        steps_per_execution=STEPS_PER_EXECUTION,
        jit_compile=False,
    )
    model.fit(
        batches.repeat(),
        steps_per_epoch=STEPS_PER_EXECUTION,
        epochs=10**6,
        callbacks=[clock],
        shuffle=False,
        verbose=0,
    )
    return clock.epochs * STEPS_PER_EXECUTION * batch_size / clock.seconds


class _Clock(tf.keras.callbacks.Callback):
    """Ends a training `PROCESS_SECONDS` after its first epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs, self.seconds = 0, 0.0
        self._start = 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if epoch < WARM_UP_EPOCHS:
            self._start = now
            return
        self.epochs, self.seconds = epoch - WARM_UP_EPOCHS + 1, now - self._start
        self.model.stop_training = self.seconds >= PROCESS_SECONDS
