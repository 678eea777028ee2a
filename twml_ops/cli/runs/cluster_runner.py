"""`twml-ops train` in a cluster: what differs where `TF_CONFIG` names parameter servers."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf
from rich.console import Console

from twml_ops.cli.errors import UserError
from twml_ops.cli.render.plots import Point
from twml_ops.cli.render.progress import POINTS_PER_EPOCH
from twml_ops.cli.runs import evaluation_log, optimizers
from twml_ops.data import Source
from twml_ops.distribute import BuiltOnce, Cluster, HybridTrainer, exit_if_lost, serve


@dataclasses.dataclass(frozen=True)
class Options:
    """How the cluster trains; see `HybridTrainer`, whose arguments these are."""

    mode: Literal["sync", "async", "hogwild"] = "async"
    partition_axis: Literal["row", "column", "auto"] = "auto"
    wire_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    checkpoint_every: int = 1000
    timeout: float = 300.0


@dataclasses.dataclass
class Progress:
    """What was seen on the way; as `progress.Report` has it."""

    train: list[Point] = dataclasses.field(default_factory=list)
    held_out: list[Point] = dataclasses.field(default_factory=list)
    examples: int = 0
    seconds: float = 0.0


def role() -> str:
    """What `TF_CONFIG` makes of this process.

    Returns:
        "ps", "chief", "worker", "evaluator", or "alone" without servers.

    Raises:
        UserError: `TF_CONFIG` is not what TensorFlow describes.
    """
    try:
        cluster = Cluster.from_environment()
    except ValueError as e:
        raise UserError(str(e)) from e
    if cluster.job in ("ps", "evaluator"):
        return cluster.job
    if not cluster.servers:
        return "alone"
    return "chief" if cluster.is_chief else "worker"


def run_server() -> None:
    """Is a parameter server until it is killed."""
    serve(Cluster.from_environment())


def connect(options: Options) -> None:
    """Before this process makes any tensor."""
    with exit_if_lost():
        Cluster.from_environment().connect(options.timeout)


def checkpoints_of(out: Path) -> Path:
    """Where a run that is to become `out` keeps what it needs until then."""
    return out.with_name(f"{out.name}.checkpoints")


def built(
    build: Callable[[], tf.keras.Model], settings: Any, options: Options, out: Path
) -> BuiltOnce:
    """The run's model, adapted by the chief."""
    what = repr([settings.data, settings.eval, settings.model, settings.seed])
    name = f"model-{hashlib.sha256(what.encode()).hexdigest()[:12]}.keras"
    with exit_if_lost():
        return BuiltOnce(build, checkpoints_of(out) / name, timeout=options.timeout)


def length(train: Source, settings: Any, options: Options) -> tuple[int, int]:
    """(steps of the run, examples in each of them, all workers together)."""
    workers = len(Cluster.from_environment().workers)
    batches = settings.epochs * -(-train.num_examples() // settings.batch_size)
    if options.mode == "sync":
        return math.ceil(batches / workers), settings.batch_size * workers
    return batches, settings.batch_size


def fit(
    build: BuiltOnce,
    train: Source,
    settings: Any,
    options: Options,
    folder: Path,
    out: Path,
    console: Console,
) -> tuple[tf.keras.Model, Progress]:
    """Trains with the others of the cluster for the given number of epochs, all workers together.

    The chief of a cluster whose `TF_CONFIG` has an evaluator waits for what it says of the last
    checkpoint, and keeps it all in `folder`.

    Returns:
        The trained model, whole, and what was seen. The process of a worker that is not the chief
        ends here.
    """
    cluster = Cluster.from_environment()
    size, batch_size, workers = train.num_examples(), settings.batch_size, len(cluster.workers)
    steps, per_step = length(train, settings, options)
    checkpoints = checkpoints_of(out)
    progress = Progress()
    every = max(1, size // POINTS_PER_EPOCH // per_step)
    recent: list[Any] = []

    def note(step: int, loss: Any) -> None:
        recent.append(loss)
        if len(recent) < max(1, every // (1 if options.mode == "sync" else workers)):
            return
        mean = sum(float(x) for x in recent) / len(recent)
        recent.clear()
        if not math.isfinite(mean):
            raise UserError(f"the loss became {mean}: try a lower --learning-rate")
        progress.train.append(Point(step * per_step, mean))
        if cluster.is_chief and len(progress.train) % POINTS_PER_EPOCH == 0:
            console.print(f"step {step:,}/{steps:,}   train loss {mean:.4f}")

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        whole = train.dataset(batch_size, shuffle=True, seed=settings.seed)
        return whole.shard(context.num_input_pipelines, context.input_pipeline_id)

    start = time.perf_counter()
    with exit_if_lost():
        trainer = HybridTrainer(
            build,
            optimizers.create(settings.optimizer, settings.learning_rate, steps),
            "binary_crossentropy",
            cluster=cluster,
            checkpoint_dir=checkpoints,
            **dataclasses.asdict(options),
        )
        last = trainer.fit(dataset, steps, note).step
        if not cluster.is_chief:
            sys.stdout.flush()
            os._exit(0)  # TensorFlow's threads may wait for servers that end with the chief
        progress.examples = settings.epochs * size
        progress.seconds = time.perf_counter() - start
        model = trainer.export()
    if cluster.evaluators:
        with console.status("waiting for the evaluator"):
            evaluation_log.await_step(checkpoints, min(last, steps), options.timeout)
    for line in evaluation_log.read(checkpoints):
        if line["log_loss"] is not None:
            progress.held_out.append(Point(line["step"] * per_step, line["log_loss"]))
    evaluation_log.keep(checkpoints, folder)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return model, progress
