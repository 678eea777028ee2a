"""`twml-ops train`: trains a model, evaluates it, and writes the folder of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from twml_ops._known_categories import KnownCategories
from twml_ops.analysis import leaking_features, scoring
from twml_ops.cli.errors import one_line
from twml_ops.cli.render import run_summary
from twml_ops.cli.render.leaks import print_leaks
from twml_ops.cli.render.schema_table import print_columns
from twml_ops.cli.render.terminal import make_console, print_warning
from twml_ops.cli.results.run_result import RunResult
from twml_ops.cli.runs import (
    artifacts,
    choose_model,
    cluster,
    ensemble,
    peer_runner,
    saved_slots,
    tiered_tables,
)
from twml_ops.cli.runs.checkpoint_options import NO_CHECKPOINTS, CheckpointOptions
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.choices import choose
from twml_ops.cli.runs.choose_crosses import with_crosses
from twml_ops.cli.runs.choose_epochs import validation_parts
from twml_ops.cli.runs.class_balance import check as check_balance
from twml_ops.cli.runs.class_balance import labels_of_one_value, training_examples
from twml_ops.cli.runs.config import AUTO, RunConfig
from twml_ops.cli.runs.evaluate import importances_of, score_source, throughput
from twml_ops.cli.runs.final_fit import final_fit
from twml_ops.cli.runs.folder import TENSORBOARD, new_folder
from twml_ops.cli.runs.known import learn
from twml_ops.cli.runs.local_runner import LocalRunner
from twml_ops.cli.runs.make_model import with_defaults, with_learning_rate
from twml_ops.cli.runs.model_options import builder_of
from twml_ops.cli.runs.run_facts import training_facts
from twml_ops.cli.runs.runner import Runner
from twml_ops.cli.runs.second_model import second_model
from twml_ops.cli.runs.sources import default_holdout, open_pair, parse_all
from twml_ops.cli.runs.warm_start import WarmStart
from twml_ops.data import original_errors
from twml_ops.peers import PeerGroup
from twml_ops.peers.launch import RESTARTS

if TYPE_CHECKING:
    from twml_ops.cli.runs.cluster_checkpoints import ClusterCheckpoints


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
    role = cluster.role()
    ensemble.check(config)
    asked = config
    if role != "alone":
        cluster.check(config)
        config = cluster.with_model(config)
    if role == "ps":
        cluster.run_server()
    elif role == "evaluator":
        from twml_ops.cli.runs import evaluator

        evaluator.evaluate_checkpoints(config, out, overwrite, checkpoints.resume)
    elif role == "worker":
        train(
            config, out, out, resume=checkpoints.resume, asked=asked
        )  # the process ends with the training
    elif role == "alone" and peer_runner.is_rank():
        _train_rank(dataclasses.replace(config, cluster=None), out, overwrite, checkpoints)
    elif role == "alone":
        config = dataclasses.replace(config, cluster=None)
        with new_folder(out, overwrite) as folder:
            saved = RunCheckpoints(cluster.checkpoint_dir(out), config, checkpoints, overwrite)
            with contextlib.closing(saved):
                result = train(config, folder, out, saved)
        _end(result, out, saved)
    else:
        from twml_ops.cli.runs.cluster_checkpoints import ClusterCheckpoints

        config = with_learning_rate(config)
        with new_folder(out, overwrite) as folder:
            of_cluster = ClusterCheckpoints(out, config, checkpoints.resume, overwrite)
            result = train(config, folder, out, resume=checkpoints.resume, asked=asked)
        _end(result, out, of_cluster)


def _end(result: RunResult, out: Path, checkpoints: RunCheckpoints | ClusterCheckpoints) -> None:
    """Publishes, removes checkpoints and prints, after the folder of the run is complete."""
    checkpoints.remove()
    if isinstance(checkpoints, RunCheckpoints):
        checkpoints.publish_final(result.model)
    files = "the report, the model and the metrics"
    run_summary.print_result(make_console(), result, files, out)


def _train_rank(config: RunConfig, out: Path, overwrite: bool, options: CheckpointOptions) -> None:
    """Trains as one of several peers, of which the first writes the folder of the run."""
    group, asked = peer_runner.make_group(config), config
    if config.epochs is None:  # peers choose nothing by validation
        config = dataclasses.replace(config, validation="none")
    if int(os.environ.get(RESTARTS, "0")):
        options = dataclasses.replace(options, resume=True)
    try:
        # Each rank has a folder: any of them may be the first in the end.
        with new_folder(out, overwrite, lock=group.original_rank == 0) as folder:
            saved = peer_runner.PeerCheckpoints(
                *(peer_runner.checkpoint_dir(out, group.original_rank), config, options, overwrite),
                group,
            )
            with contextlib.closing(saved):
                try:
                    result = train(config, folder, out, saved, group, asked=asked)
                except SystemExit:  # the end of another rank than the first
                    saved.remove()
                    raise
        _end(result, out, saved)
    except Exception as e:
        if group.size == 1:
            raise
        group.leave(one_line(e))


def train(
    config: RunConfig,
    folder: Path,
    out: Path,
    checkpoints: RunCheckpoints | None = None,
    group: PeerGroup | None = None,
    resume: bool = False,
    asked: RunConfig | None = None,
) -> RunResult:
    """Trains and evaluates a model, and writes the files of the run.

    Args:
        config: configuration of the run.
        folder: folder to write to.
        out: final name of `folder`.
        checkpoints: the checkpoints of the run, if it is trained in this process; None: none are
            written.
        group: the ranks of which this process is one; None: it trains without peers.
        resume: whether a cluster continues from checkpoints of another start.
        asked: what the user chose, where a cluster or peers may train something else.

    Raises:
        UserError: the configuration is invalid, or the loss became NaN.
        ValueError: the model is unknown, or data cannot be read.
    """
    console = make_console()
    saved_slots.check(config)
    tiered_tables.check(config)
    if config.model == AUTO:
        choose_model.check(config)
    start = WarmStart(config) if config.from_run is not None else None
    runner: Runner | None = None
    if config.cluster is not None:
        config = with_learning_rate(config)
        from twml_ops.cli.runs.cluster_runner import ClusterRunner

        runner = ClusterRunner(config, folder, out, console, resume)
        runner.connect()
    like = start.schema if start else None
    uses = config.uses if like is None and config.schema_file is None else None
    data, held_out = open_pair(
        *(config.data, config.eval, like, config.schema_file, uses),
        start.holdout if start else None,
    )
    holdout = start.holdout if start else default_holdout(config.schema_file, data.schema)
    if cluster.role() != "worker" and (group is None or group.rank == 0):
        print_columns(console, data)
    if config.cluster is not None:
        cluster.check_labels(data.schema.labels)
    second = second_model(config, data.schema)
    if config.model != AUTO:
        config = with_defaults(config, data.schema)
        builder_of(config.model)  # fails before the examples are read
    check_balance(config, data.schema)
    with original_errors(data, held_out), console.status(f"reading {escape(data.name)}"):
        parts = validation_parts(config, data)
        data = training_examples(config, data)
        sizes = data.num_examples(), held_out.num_examples()
        if cluster.role() != "worker":
            for text in labels_of_one_value(data):
                print_warning(console, text)
    run_summary.print_data(console, data, held_out, sizes)
    if config.eval is None and holdout == "time":
        run_summary.print_split_in_time(console, data.schema)
    differs = None
    if asked is not None:
        who = "peers" if config.cluster is None else "a cluster"
        differs = cluster.differences(asked, data.schema, who)
    if differs is not None and (group.rank == 0 if group else cluster.role() == "chief"):
        console.print(f"        {differs}", soft_wrap=True)
    with original_errors(data, held_out, *(parts or ())):
        config = with_crosses(config, parts, console)
        examined = parts.validation if parts else held_out
        leaks: dict[str, float] = {}
        if cluster.role() != "worker":  # the chief warns of them
            leaks = leaking_features(examined.blocks(), data.schema)
        known = None
        if cluster.role() != "worker":
            before = KnownCategories.load(Path(config.from_run)) if config.from_run else None
            known = learn(data, before) if data.schema.categorical else None
    print_leaks(console, leaks, examined.name)
    if checkpoints is not None:
        checkpoints.publish_with(known)
    if cluster.role() != "worker":
        with original_errors(held_out), console.status(f"reading {escape(held_out.name)}"):
            parse_all(held_out)
    if group is not None:
        logs = folder / TENSORBOARD if group.rank == 0 else None
        config = with_learning_rate(config)
        runner = peer_runner.PeerRunner(config, logs, console, checkpoints, group)
    choices = choose(config, data, parts, folder / TENSORBOARD, console, checkpoints, second)
    config, choice = choices.config, choices.epochs
    if runner is None:
        runner = LocalRunner(config, folder / TENSORBOARD, console, checkpoints)
    with original_errors(data, held_out, *(parts or ())):
        logs = folder / TENSORBOARD
        fit = final_fit(runner, choices, data, held_out, logs, console, checkpoints)
        fitted = ensemble.fit_members(config, fit, console, checkpoints)
        artifacts.write_model(folder, out, fitted.model)
        scores = score_source(fitted.model, held_out, console, sizes[1])
        importances = importances_of(fitted.model, held_out, config.seed, console)
    histories = [*fitted.members] + ([choice.history] if choice and choice.refit else [])
    speed = throughput(sum(h.examples for h in histories), sum(h.seconds for h in histories))
    validation = {"validation_log_loss": choice.log_loss} if choice else {}
    trained_on = (data.name, sizes[0])
    if choice and not choice.refit:
        trained_on = (choice.fit_source, choice.fit_examples)
    means = scoring.mean_metrics(scoring.metrics_by_label(scores))
    result = RunResult(
        fitted.model,
        fitted.history,
        scores,
        {**means, **validation, **speed},
        importances,
        training_facts(
            config,
            data.schema,
            trained_on,
            (held_out.name, sizes[1]),
            fitted.model,
            choice,
            fitted.members,
            choices.model,
            {"data": examined.name, "features": leaks},
            fitted.history,
            differs,
            None if config.eval else holdout,
        ),
        epoch_choice=choice,
    )
    if config.save_slots:
        saved_slots.write(folder, fitted.model)
    if known is not None:
        known.save(folder)
    artifacts.write(folder, result)
    return result
