"""The cluster of a training, as `TF_CONFIG` describes it: its options, data and steps.

`twml_ops.distribute` is imported only where there is a cluster: a run in one process starts faster
without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from twml_ops.data import InputPosition, Source
from twml_ops.planning.sharding_plan import read_plan
from twml_ops.training.config import AUTO, DEFAULT, ClusterOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.model import check_storage
from twml_ops.training.trained_run import check_slots

STAGES = "stages"  # the beginning of the name of their folder
EVALUATIONS = "evaluations.jsonl"
START_KEY = "cluster_start"  # in run.json: the id of the start of the cluster


def check_cluster(config: RunConfig, *, peers: bool = False) -> None:
    """Checks that a cluster can do what the configuration says.

    Args:
        config: configuration of the run.
        peers: whether the processes are peers, which have no servers.

    Raises:
        UserError: peers are to choose the model, checkpoints of servers are to be quantized, the
            slots of several models are to be saved, tables are to be in files of peers or updated
            there without locks, asynchronous steps are to have micro-batches, or a plan is to
            divide the tables of several models, or cannot be read.
    """
    if peers and config.model == AUTO:
        raise UserError("--model auto: peers cannot choose the model; choose it in one process")
    if not peers and (config.checkpoint_bits, config.checkpoint_slot_bits) != (32, 32):
        raise UserError(
            "--checkpoint-bits, --checkpoint-slot-bits: checkpoints of a cluster are not quantized"
        )
    if not peers:
        check_slots(config)
        check_storage(config)
        _check_plan(config)
        if config.cluster and config.cluster.micro_batches and config.cluster.mode != "sync":
            raise UserError(f"--micro-batches: needs --mode sync, got {config.cluster.mode}")
    elif config.storage is not None:
        raise UserError(
            "--storage: peers keep their tables in memory; use parameter servers or one process"
        )


def _check_plan(config: RunConfig) -> None:
    """Checks the plan before the data are read; the trainer compares it with the model."""
    plan = None if config.cluster is None else config.cluster.plan
    if plan is None:
        return
    if config.model in (DEFAULT, AUTO):
        raise UserError(
            "--plan: a plan divides the tables of one model; name the model with --model"
        )
    try:
        read_plan(Path(plan))
    except (ValueError, OSError) as e:
        raise UserError(f"--plan: {e}") from e


def run_server() -> None:
    """Runs a parameter server until the process is killed."""
    from twml_ops.distribute import Cluster, serve

    serve(Cluster.from_environment())


def checkpoint_dir(out: Path) -> Path:
    """Folder of the checkpoints of a run until its own folder `out` is complete."""
    return out.with_name(f"{out.name}.checkpoints")


def stages_dir(out: Path, start: str) -> Path:
    """Folder of the decisions of the chief and of the models that it has built.

    Args:
        out: final folder of the run.
        start: id of the start of the cluster: the data may be others in another one.
    """
    return checkpoint_dir(out) / f"{STAGES}-{start}"


def cluster_options(config: RunConfig) -> ClusterOptions:
    """The cluster options of a configuration for a cluster."""
    assert config.cluster is not None
    return config.cluster


def steps_of_epoch(train: Source, config: RunConfig) -> tuple[int, int]:
    """The length of an epoch.

    Args:
        train: training data.
        config: configuration of the training.

    Returns:
        (number of steps, number of examples in a step), counting all workers together.
    """
    from twml_ops.distribute import Cluster

    workers = len(Cluster.from_environment().workers)
    batches = -(-train.num_examples() // config.fixed_batch_size)
    options = cluster_options(config)
    if options.mode == "sync":
        count = options.batches_of_step(workers)
        return -(-batches // count), config.fixed_batch_size * count
    return batches, config.fixed_batch_size


def with_shared_batch(config: RunConfig, asked: RunConfig, workers: int) -> RunConfig:
    """The configuration with a default batch size divided among synchronous workers, or peers.

    With micro-batches it is divided among these.

    The batches of all workers make a step together, which then has the examples of a step of one
    process.

    Args:
        config: configuration of the run, with a batch size.
        asked: what the user chose.
        workers: the number of workers.
    """
    if asked.batch_size is not None or (config.cluster and config.cluster.mode != "sync"):
        return config
    workers = config.cluster.batches_of_step(workers) if config.cluster else workers
    return dataclasses.replace(config, batch_size=-(-config.fixed_batch_size // workers))


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
