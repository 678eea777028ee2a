"""The cluster of a training, as `TF_CONFIG` describes it, and the log of its evaluations.

`twml_ops.distribute` is imported only where there is a cluster: a run in one process starts faster
without it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from twml_ops import models
from twml_ops._publish import write_file
from twml_ops.data import InputPosition, Schema, Source
from twml_ops.training.config import AUTO, DEFAULT, ClusterOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.run_folder import to_finite

if TYPE_CHECKING:
    from twml_ops.distribute import ChiefBuiltModel

MODEL_FILES = "model"  # the beginning of the name of its file
CLUSTER_MODEL = "sparse_mlp"  # the servers hold the tables of sparse linear layers


def check_cluster(config: RunConfig) -> None:
    """Checks that a cluster can do what the configuration says.

    Raises:
        UserError: it is an ensemble, the model is to be chosen, or checkpoints are to be
            quantized.
    """
    if config.model == AUTO:
        raise UserError("--model auto: a cluster trains one model; choose it in one process")
    if config.ensemble > 1:
        raise UserError("--ensemble: a cluster trains one model; train an ensemble in one process")
    if (config.checkpoint_bits, config.checkpoint_slot_bits) != (32, 32):
        raise UserError(
            "--checkpoint-bits, --checkpoint-slot-bits: checkpoints of a cluster are not quantized"
        )


def with_cluster_model(config: RunConfig) -> RunConfig:
    """The configuration with the default model of a cluster, if the user chose no model.

    Args:
        config: what the user chose.
    """
    if config.model == DEFAULT:
        return dataclasses.replace(config, model=CLUSTER_MODEL)
    return config


def differences_to_one_process(asked: RunConfig, schema: Schema, who: str) -> str | None:
    """The differences to what one process would train with the same command.

    Args:
        asked: what the user chose.
        schema: the features.
        who: trains: "a cluster" or "peers".

    Returns:
        A sentence that names the options which decide it; None: nothing.
    """
    here, alone, options = [], [], []
    of_cluster, of_process = with_cluster_model(asked).model, models.default_name(schema)
    if asked.model == DEFAULT and who == "a cluster" and of_cluster != of_process:
        here.append(f"{of_cluster}, whose tables the servers hold")
        alone.append(of_process)
        options.append("--model")
    if asked.epochs is None and asked.validation != "none":
        here.append(f"{asked.fixed_epochs} epochs")
        alone.append("as many epochs as early stopping chooses")
        options.append("--epochs")
    if not here:
        return None
    verb = "trains" if who == "a cluster" else "train"
    return (
        f"{who} {verb} {' and '.join(here)}; one process would train {' and '.join(alone)} "
        f"({' and '.join(options)} decide{'s' * (len(options) == 1)})"
    )


def check_one_label(labels: Sequence[str]) -> None:
    """Checks that a cluster can train a model of these labels.

    Raises:
        UserError: there are several labels.
    """
    if len(labels) > 1:
        raise UserError(
            f"a cluster trains a model of one label, and the schema names {', '.join(labels)}: "
            "train them in one process, or in a schema for each"
        )


def run_server() -> None:
    """Runs a parameter server until the process is killed."""
    from twml_ops.distribute import Cluster, serve

    serve(Cluster.from_environment())


def checkpoint_dir(out: Path) -> Path:
    """Folder of the checkpoints of a run until its own folder `out` is complete."""
    return out.with_name(f"{out.name}.checkpoints")


def build_once(
    make_model: Callable[[], tf.keras.Model], config: RunConfig, out: Path
) -> ChiefBuiltModel:
    """The model of a run, which the chief builds and the other processes read from a file."""
    from twml_ops.distribute import ChiefBuiltModel, Cluster, exit_on_cluster_error

    path = checkpoint_dir(out) / model_file(config, Cluster.from_environment().start_id)
    with exit_on_cluster_error():
        return ChiefBuiltModel(make_model, path, timeout=cluster_options(config).timeout)


def model_file(config: RunConfig, start: str) -> str:
    """The name of the file of the model that the chief builds.

    Args:
        config: configuration of the run.
        start: id of the start of the cluster: the data may be others in another one.
    """
    data = [config.data, config.eval, config.schema_file, config.uses]
    identity = repr([*data, config.model, config.model_options, config.seed, start])
    return f"{MODEL_FILES}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.keras"


def cluster_options(config: RunConfig) -> ClusterOptions:
    """The cluster options of a configuration for a cluster."""
    assert config.cluster is not None
    return config.cluster


def steps_of(train: Source, config: RunConfig, epochs: int) -> tuple[int, int]:
    """The length of a run.

    Returns:
        (number of steps, number of examples in a step), counting all workers together.
    """
    from twml_ops.distribute import Cluster

    workers = len(Cluster.from_environment().workers)
    batches = epochs * -(-train.num_examples() // config.fixed_batch_size)
    if cluster_options(config).mode == "sync":
        return math.ceil(batches / workers), config.fixed_batch_size * workers
    return batches, config.fixed_batch_size


@dataclasses.dataclass(frozen=True)
class WorkerData:
    """The part of the training data that a worker reads.

    Attributes:
        source: its part; all training data if they have so few units that the parts would differ by
            more than a fifth.
        index: number of the worker.
        count: number of workers.
        is_whole: whether it is all data, of which the worker takes every `count`-th batch.
    """

    source: Source
    index: int
    count: int
    is_whole: bool


def worker_data(train: Source, index: int, count: int) -> WorkerData:
    """Divides the training data among the workers.

    Args:
        train: training data.
        index: number of the worker.
        count: number of workers.
    """
    sizes = [train.shard(i, count).num_examples() for i in range(count)]
    whole = 5 * min(sizes) < 4 * max(sizes)
    return WorkerData(train if whole else train.shard(index, count), index, count, whole)


def worker_batches(
    data: WorkerData,
    batches: Callable[[Source, InputPosition], tf.data.Dataset],
    *,
    seed: int,
    batch_size: int,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """The batches of one worker, from one of them on to the end of its epoch.

    Args:
        data: what the worker reads.
        batches: makes the batches of a source from a position on, the same in each process.
        seed: the seed of the order of the examples.
        batch_size: examples in a batch.
        first_batch: the number of the batch to begin with, counted over all epochs.
    """
    source, index, count, whole = data.source, data.index, data.count, data.is_whole
    in_epoch = -(-source.num_examples() // batch_size)
    if whole:
        in_epoch = -(-(in_epoch - index) // count)
    epoch, batch = divmod(first_batch, max(in_epoch, 1))
    examples = batch * batch_size * (count if whole else 1)
    dataset = batches(source, InputPosition(seed, epoch, examples))
    return dataset.shard(count, index) if whole else dataset


EVALUATIONS = "evaluations.jsonl"


def append_evaluation(folder: Path, step: int, metrics: dict[str, float]) -> None:
    """Adds the metrics of the checkpoint of `step`."""
    before = (folder / EVALUATIONS).read_text() if (folder / EVALUATIONS).exists() else ""
    line = json.dumps(to_finite({"step": step, **metrics}), allow_nan=False)
    write_file(folder / EVALUATIONS, f"{before}{line}\n".encode())  # at once, in case of a kill


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The lines of the log; empty if there is no log."""
    try:
        return [json.loads(line) for line in (folder / EVALUATIONS).read_text().splitlines()]
    except FileNotFoundError:
        return []


def wait_for_evaluation(folder: Path, step: int, timeout: float) -> bool:
    """Waits until a checkpoint of `step` or a later one has been evaluated.

    Args:
        folder: folder of the log.
        step: step to wait for.
        timeout: seconds to wait at most.

    Returns:
        Whether it was evaluated in time.
    """
    deadline = time.monotonic() + timeout
    while not any(line["step"] >= step for line in read_evaluations(folder)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def copy_evaluations(folder: Path, run: Path) -> None:
    """Copies the log, if there is one, to the folder of the run."""
    if (folder / EVALUATIONS).exists():
        shutil.copyfile(folder / EVALUATIONS, run / EVALUATIONS)
