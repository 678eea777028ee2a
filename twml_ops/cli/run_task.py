"""What a process of `twml-ops train` does: alone, as a peer, or as a task of a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twml_ops.cli.errors import message_of
from twml_ops.cli.options import command_line
from twml_ops.training.config import (
    NO_CHECKPOINTS,
    CheckpointOptions,
    RunConfig,
    cluster_role,
    is_rank,
)
from twml_ops.training.errors import RunInterrupted, UserError

if TYPE_CHECKING:
    from twml_ops.training.checkpoints import RunCheckpoints
    from twml_ops.training.cluster_checkpoints import ClusterCheckpoints
    from twml_ops.training.reporter import Reporter
    from twml_ops.training.results import RunResult


def run_task(
    config: RunConfig,
    out: Path,
    overwrite: bool,
    checkpoints: CheckpointOptions = NO_CHECKPOINTS,
) -> None:
    """Does what this process has to do for a training run.

    Without parameter servers in `TF_CONFIG` this process trains alone and ignores `config.cluster`.
    Otherwise it does its task in the cluster, where only the chief writes the folder of the run.

    Args:
        config: configuration of the run.
        out: folder to create.
        overwrite: replace a finished run in `out`.
        checkpoints: when a run in one process writes checkpoints, and whether it continues.

    Raises:
        UserError: the configuration is invalid, the loss became NaN, or a signal ended the run.
        ValueError: the model is unknown, or data cannot be read.
    """
    from twml_ops.cli.console import make_console
    from twml_ops.cli.reporter import ConsoleReporter

    role = cluster_role()
    reporter = ConsoleReporter(make_console())
    if role == "alone" and not is_rank():
        config = dataclasses.replace(config, cluster=None)
        _train_alone(config, out, overwrite, checkpoints, reporter)
        return
    from twml_ops.training import cluster
    from twml_ops.training.fit import check_ensemble

    check_ensemble(config)
    if role != "alone":
        cluster.check_cluster(config)
        _check_publication(config, checkpoints.publish)
    if role == "ps":
        cluster.run_server()
    elif role == "evaluator":
        from twml_ops.training.cluster_evaluator import evaluate_checkpoints

        resume, publish = checkpoints.resume, checkpoints.publish
        evaluate_checkpoints(config, out, overwrite, resume, reporter, publish)
    elif role != "alone":
        _train_in_cluster(config, out, overwrite, checkpoints.resume, reporter)
    else:
        config = dataclasses.replace(config, cluster=None)
        _train_rank(config, out, overwrite, checkpoints, reporter)


def _check_publication(config: RunConfig, publish: Path | None) -> None:
    """Checks, in each process of a cluster, whether versions can be published."""
    if publish is None:
        return
    from twml_ops.distribute import Cluster
    from twml_ops.training.run_publisher import RunPublisher

    RunPublisher(publish, config)
    if not Cluster.from_environment().evaluators:
        raise UserError(
            "--publish: needs an evaluator, which publishes the versions of a cluster; "
            "add --evaluator to `twml-ops launch`, or an evaluator to TF_CONFIG"
        )


def _train_alone(
    config: RunConfig, out: Path, overwrite: bool, options: CheckpointOptions, reporter: Reporter
) -> None:
    from twml_ops.training.run_folder import new_folder
    from twml_ops.training.sources import open_data

    with new_folder(out, overwrite, reporter=reporter) as folder:
        # What is wrong with files and names of columns is said before TensorFlow is imported.
        opened = open_data(config) if config.from_run is None else None
        from twml_ops.training.checkpoints import RunCheckpoints
        from twml_ops.training.cluster import checkpoint_dir
        from twml_ops.training.fit import check_ensemble

        check_ensemble(config)
        saved = RunCheckpoints(checkpoint_dir(out), config, options, overwrite, reporter)
        with contextlib.closing(saved):
            result = _train_to(folder, out, config, reporter, checkpoints=saved, opened=opened)
    _end(result, out, saved)


def _train_in_cluster(
    config: RunConfig, out: Path, overwrite: bool, resume: bool, reporter: Reporter
) -> None:
    """Trains as the chief, which writes the folder of the run, or as another worker."""
    from twml_ops.training.cluster_checkpoints import ClusterCheckpoints
    from twml_ops.training.cluster_stages import ClusterStages
    from twml_ops.training.run import train as train_model
    from twml_ops.training.run_folder import new_folder

    if cluster_role() == "worker":
        stages = ClusterStages(config, out, reporter, resume)
        with stages.connected():
            train_model(config, reporter=reporter, stages=stages)  # the process ends with it
        return
    with new_folder(out, overwrite, reporter=reporter) as folder:
        saved = ClusterCheckpoints(out, config, resume, overwrite)
        stages = ClusterStages(config, out, reporter, resume, folder)
        with saved.kept_if_begun(), stages.connected():
            result = _train_to(folder, out, config, reporter, stages=stages)
    _end(result, out, saved)


def _train_rank(
    config: RunConfig, out: Path, overwrite: bool, options: CheckpointOptions, reporter: Reporter
) -> None:
    """Trains as one of several peers, of which the first writes the folder of the run."""
    from twml_ops.peers.launch import RESTARTS
    from twml_ops.training.peers import PeerCheckpoints, PeerStages, make_group, rank_checkpoint_dir
    from twml_ops.training.run_folder import new_folder

    group = make_group(config)
    restarted = int(os.environ.get(RESTARTS, "0")) > 0
    try:
        # Each rank has a folder: any of them may be the first in the end.
        with new_folder(out, overwrite, lock=group.original_rank == 0, reporter=reporter) as folder:
            stages = PeerStages(config, out, reporter, group, folder)
            own = rank_checkpoint_dir(out, group.original_rank)
            saved = PeerCheckpoints(own, config, options, overwrite, stages, restarted)
            with contextlib.closing(saved), stages.connected():
                try:
                    result = _train_to(folder, out, config, reporter, stages=stages)
                except SystemExit:  # the end of another rank than the first
                    saved.remove()
                    raise
        _end(result, out, saved)
    except Exception as e:
        if group.size == 1:
            raise
        group.leave(message_of(e))


def _train_to(
    folder: Path, out: Path, config: RunConfig, reporter: Reporter, **options: Any
) -> RunResult:
    """Trains and writes the files of the run.

    Args:
        folder: folder to write to.
        out: its final name.
        config: configuration of the run.
        reporter: is told what happens.
        **options: of `training.run.train`.
    """
    from twml_ops._phases import Phases, process_start
    from twml_ops.report.run_files import write_features, write_files, write_model
    from twml_ops.training.run import train as train_model
    from twml_ops.training.run_folder import TENSORBOARD
    from twml_ops.training.trained_run import write_slots

    try:
        result = train_model(
            config,
            reporter=reporter,
            logs=folder / TENSORBOARD,
            on_model=lambda model: write_model(folder, out, model),
            command=command_line(),
            phases=Phases(reporter.phase_ended, process_start()),
            **options,
        )
    except RunInterrupted as e:
        if not e.can_continue:
            raise
        again = command_line("--resume", "--overwrite")
        raise RunInterrupted(f"{e}; to continue: {again} --resume") from None
    if config.save_slots:
        write_slots(folder, result.model)
    write_features(folder, result)
    write_files(folder, result)
    return result


def _end(result: RunResult, out: Path, checkpoints: RunCheckpoints | ClusterCheckpoints) -> None:
    """Removes checkpoints, publishes and prints, once the folder of the run is complete."""
    from twml_ops.cli.console import make_console
    from twml_ops.cli.reporter import print_result, print_total
    from twml_ops.training.checkpoints import RunCheckpoints

    checkpoints.remove()
    if isinstance(checkpoints, RunCheckpoints):
        checkpoints.publish_final(result.model)
    files = "the report, the model and the metrics"
    console = make_console()
    print_result(console, result, files, out)
    if result.phases is not None:
        print_total(console, result.phases.total())
