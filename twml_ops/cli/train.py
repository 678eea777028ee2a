"""`twml-ops train`: trains a model, evaluates it, and writes the folder of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twml_ops.cli.errors import one_line
from twml_ops.cli.options import (
    NO_COLUMNS,
    SOURCES,
    ColumnOptions,
    Debug,
    HelpAll,
    Optimizer,
    advanced,
    command_line,
    expanded,
    given_options,
)
from twml_ops.training.config import (
    DEFAULT_EPOCHS,
    DEFAULT_TIME_LIMIT,
    NO_CHECKPOINTS,
    CheckpointOptions,
    ClusterOptions,
    RunConfig,
)
from twml_ops.training.errors import RunInterrupted, UserError

if TYPE_CHECKING:
    from twml_ops.training.checkpoints import RunCheckpoints
    from twml_ops.training.cluster_checkpoints import ClusterCheckpoints
    from twml_ops.training.reporter import Reporter
    from twml_ops.training.results import RunResult

_more = advanced("More about the training")
_storage = advanced("Tables larger than memory")
_stopping = advanced("Early stopping")
_cluster = advanced("In a cluster (TF_CONFIG)")
_checkpoint = advanced("Checkpoints")


@expanded
def train(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to create.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(help=f"Examples: {SOURCES}. Required without --config.", show_default=False),
    ] = None,
    eval_: Annotated[
        str | None,
        typer.Option(
            "--eval",
            help="Examples to evaluate on. Default: the last fifth of --data (for flights: the "
            "days from the 25th of each month), which is then not used for training.",
            show_default=False,
        ),
    ] = None,
    schema_file: Annotated[
        str | None,
        typer.Option(
            "--schema",
            help="File with the uses of the columns of CSV, Parquet or TFRecord files, as "
            "`twml-ops schema` writes it. Default: as their names, types and values look like.",
            show_default=False,
        ),
    ] = None,
    columns: ColumnOptions = NO_COLUMNS,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Repeat a run: its folder, its run.json, or a JSON file with some of the fields "
            "of one. Options given beside it override it.",
            show_default=False,
        ),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Go on with the training of a finished run, on other --data with the same "
            "features. The model and the defaults of all other options are taken from the run.",
            show_default=False,
        ),
    ] = RunConfig.from_run,
    new_categories: Annotated[
        bool,
        _more(
            help="With --from: categories that are frequent in the new data and have no row get "
            "one, in models on fields."
        ),
    ] = RunConfig.new_categories,
    model: Annotated[
        str,
        typer.Option(
            help="Name of the model (`twml-ops info` lists them), FILE.py:FUNCTION of a function "
            "`build(schema, dataset, *, ...)` that returns a Keras model, or auto: try several "
            "models and options, and take those with the lowest validation loss. By default dcn; "
            "sparse_mlp in a cluster and for nothing but more than 256 raw sparse features.",
            show_default=False,
        ),
    ] = RunConfig.model,
    time_limit: Annotated[
        float | None,
        _more(
            help="Seconds after which --model auto starts no further trial. Default: "
            f"{DEFAULT_TIME_LIMIT:g}.",
            show_default=False,
        ),
    ] = RunConfig.time_limit,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set an option of the model, which `twml-ops info MODEL` lists; for example "
            "units=64 or hidden=64,32. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    optimizer: Optimizer = RunConfig.optimizer,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Learning rate. In a cluster it decreases linearly to 0. Default: by optimizer "
            "and model.",
            show_default=False,
        ),
    ] = RunConfig.learning_rate,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Examples in a batch. Default: 256; for the model dcn up to 1024, the more "
            "examples there are.",
            show_default=False,
        ),
    ] = RunConfig.batch_size,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes over the training data, all of which are used; nothing is stopped early. "
            f"Default: chosen by early stopping; {DEFAULT_EPOCHS} in a cluster or with peers, "
            "without validation, or if the validation data would be fewer than 100 examples.",
            show_default=False,
        ),
    ] = RunConfig.epochs,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed: the same seed gives the same model.")
    ] = RunConfig.seed,
    ensemble: Annotated[
        int,
        _more(
            min=1,
            help="Train this many models with different seeds, one after another. The model of the "
            "run returns the mean of their probabilities.",
        ),
    ] = RunConfig.ensemble,
    positive_weight: Annotated[
        float,
        _more(
            help="Factor of the weights of positive examples in training. The predictions are not "
            "corrected for it."
        ),
    ] = RunConfig.positive_weight,
    negative_rate: Annotated[
        float,
        _more(
            help="Share of the negative examples to train on, drawn at random. The model ends in a "
            "layer that corrects the predictions for it."
        ),
    ] = RunConfig.negative_rate,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run in --out.")
    ] = False,
    save_slots: Annotated[
        bool,
        _more(
            "--save-slots/--no-save-slots",
            help="Keep the optimizer's slots in the run, so that a run --from it goes on with "
            "them. They take as much space as the weights or more.",
        ),
    ] = RunConfig.save_slots,
    storage: Annotated[
        str | None,
        _storage(
            metavar="DIR",
            help="Keep the rows of large tables, with the optimizer's slots, in files in this "
            "folder, on a fast local disk, and --cache-rows of each table in memory. The weights "
            "of epochs are then not averaged.",
            show_default=False,
        ),
    ] = RunConfig.storage,
    cache_rows: Annotated[
        int,
        _storage(
            min=1,
            help="With --storage: rows of a table in memory, at least the distinct ids of a batch. "
            "Tables with at most so many rows are in memory as a whole. `twml-ops tables` "
            "predicts the hit rates.",
        ),
    ] = RunConfig.cache_rows,
    validation: Annotated[
        str,
        _stopping(
            help="Part of the training data that is used for early stopping: none; time (the "
            "latest examples, by the schema's column of times); order (the last examples); random; "
            "group (random groups, by the schema's column of groups); or auto: the method that is "
            "the default of the data source.",
        ),
    ] = RunConfig.validation,
    validation_share: Annotated[
        float,
        _stopping(
            help="Size of that part, as a share of the training data, between 0 and 1.",
        ),
    ] = RunConfig.validation_share,
    patience: Annotated[
        int,
        _stopping(
            min=1,
            help="Stop after this many epochs in a row without a lower validation loss.",
        ),
    ] = RunConfig.patience,
    max_epochs: Annotated[
        int,
        _stopping(
            min=1,
            help="Stop after this many epochs in any case.",
        ),
    ] = RunConfig.max_epochs,
    refit: Annotated[
        bool,
        _stopping(
            help="Afterwards train a new model on all training data, for the best number of "
            "epochs; or keep the weights of the best epoch.",
        ),
    ] = RunConfig.refit,
    mode: Annotated[
        str,
        _cluster(
            help="sync, async or hogwild: how workers synchronize updates.",
        ),
    ] = ClusterOptions.mode,
    partition_axis: Annotated[
        str,
        _cluster(
            help="row, column or auto: how tables are divided among the servers.",
        ),
    ] = ClusterOptions.partition_axis,
    wire_dtype: Annotated[
        str,
        _cluster(
            help="float32, bfloat16 or float16: data type of products and gradients in messages.",
        ),
    ] = ClusterOptions.wire_dtype,
    exchange_every: Annotated[
        int,
        _cluster(
            min=1,
            help="Batches of a worker for which it exchanges messages with the servers once. With "
            "more, servers need less CPU time and products are older. Not with --mode sync.",
        ),
    ] = ClusterOptions.exchange_every,
    steps_per_execution: Annotated[
        int,
        _cluster(
            min=1,
            help="Steps of a call of TensorFlow, rounded up to a multiple of --exchange-every. "
            "More need less CPU time a step, and more time before the first step.",
        ),
    ] = ClusterOptions.steps_per_execution,
    checkpoint_every: Annotated[
        str,
        _checkpoint(
            metavar="N[s|m]",
            help="Steps (1000), seconds (30s) or minutes (10m) between checkpoints; 0: none. They "
            "are written to OUT.checkpoints and removed when the run has finished. In a cluster "
            f"steps, {ClusterOptions.checkpoint_every} by default; all servers must be able to "
            "access the folder.",
        ),
    ] = "10m",
    checkpoint_keep: Annotated[
        int,
        _checkpoint(min=1, help="How many checkpoints are kept."),
    ] = CheckpointOptions.keep,
    checkpoint_policy: Annotated[
        str,
        _checkpoint(
            help="full, one-shot, consecutive or intermittent: checkpoints have all rows of tables "
            "and their slots, or those that changed since the first checkpoint, since the one "
            "before, or since one with all rows, which is repeated when that writes fewer bytes.",
        ),
    ] = RunConfig.checkpoint_policy,
    checkpoint_bits: Annotated[
        int,
        _checkpoint(
            help="32, 8, 4, 3 or 2: bits of a weight of a table in checkpoints; 32: as it is. With "
            "fewer bits a run that is continued is not equal to one that was not stopped.",
        ),
    ] = RunConfig.checkpoint_bits,
    checkpoint_slot_bits: Annotated[
        int,
        _checkpoint(
            help="The same for the optimizer's slots of tables.",
        ),
    ] = RunConfig.checkpoint_slot_bits,
    resume: Annotated[
        bool,
        _checkpoint(
            "--resume",
            help="Continue a run that was stopped from its last checkpoint, if it has one. The "
            "result is that of a run that was not stopped, unless checkpoints are quantized. In a "
            "cluster: continue the run of an earlier start of the cluster.",
        ),
    ] = False,
    publish: Annotated[
        Path | None,
        _checkpoint(
            metavar="DIR",
            help="Write each checkpoint, and the final model, to this folder as the next version "
            "of a scorer, for `twml-ops serve DIR`: the rows of tables that changed, or all.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float,
        _cluster(
            help="Seconds after which a process that does not answer is considered lost.",
        ),
    ] = ClusterOptions.timeout,
    debug: Debug = False,
    help_all: HelpAll = False,
) -> None:
    """Trains a model, evaluates it, and writes the model and a report to a new folder.

    The folder contains metrics.json, report.html, saved_model/, model.keras, tensorboard/ and
    run.json. It is created when all of them are complete. A failed run leaves no folder. A run
    that is stopped (Ctrl-C, SIGTERM) writes a checkpoint, from which --resume continues.
    If TF_CONFIG names parameter servers, this process runs its task in their cluster.
    """
    from twml_ops.cli.configure import configure
    from twml_ops.training.cluster import cluster_role

    given = given_options(ctx)
    in_cluster = cluster_role() != "alone"
    given.pop("publish", None)
    checkpoints = checkpoint_options(
        *(checkpoint_every, checkpoint_keep, resume, given, in_cluster, publish)
    )
    run_task(configure(config, given, options or []), out, overwrite, checkpoints)


_EVERY = re.compile(r"(\d+)([sm]?)")


def checkpoint_options(
    every: str,
    keep: int,
    resume: bool,
    given: dict[str, Any],
    in_cluster: bool,
    publish: Path | None = None,
) -> CheckpointOptions:
    """The options of the command line.

    Args:
        every: N steps, Ns seconds or Nm minutes; "0" for none.
        keep: how many are kept.
        resume: whether to continue from the last one.
        given: options of the command line that the user gave. `checkpoint_every` becomes the number
            of steps, the option of a cluster, or is removed if there is no cluster.
        in_cluster: whether `TF_CONFIG` describes a cluster.
        publish: folder for versions of a scorer.

    Raises:
        UserError: `every` has another form, or is no number of steps in a cluster; or versions are
            to be published in a cluster or without checkpoints.
    """
    match = _EVERY.fullmatch(every)
    if match is None:
        raise UserError(
            "--checkpoint-every: expected steps, such as 1000, seconds, such as 30s, or minutes, "
            f"such as 10m, got {every!r}"
        )
    number, unit = int(match.group(1)), match.group(2)
    if publish is not None and (in_cluster or not number):
        where = "in a cluster" if in_cluster else "without checkpoints"
        raise UserError(f"--publish: versions cannot be published {where}")
    if given.pop("checkpoint_every", None) is not None and in_cluster:
        if unit or not number:
            raise UserError(f"--checkpoint-every: a cluster counts steps, got {every!r}")
        given["checkpoint_every"] = number
    if not unit:
        return CheckpointOptions(number or None, None, keep, resume, publish)
    seconds = number * (60.0 if unit == "m" else 1.0)
    return CheckpointOptions(None, seconds or None, keep, resume, publish)


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
    from twml_ops.cli.reporter import ConsoleReporter
    from twml_ops.cli.terminal import make_console
    from twml_ops.training import cluster, peers
    from twml_ops.training.fit import check_ensemble

    role = cluster.cluster_role()
    check_ensemble(config)
    asked, reporter = config, ConsoleReporter(make_console())
    if role != "alone":
        cluster.check_cluster(config)
        config = cluster.with_cluster_model(config)
    if role == "ps":
        cluster.run_server()
    elif role == "evaluator":
        from twml_ops.training.cluster_checkpoints import evaluate_checkpoints

        evaluate_checkpoints(config, out, overwrite, checkpoints.resume, reporter)
    elif role != "alone":
        _train_in_cluster(config, out, overwrite, checkpoints.resume, asked, reporter)
    elif peers.is_rank():
        config = dataclasses.replace(config, cluster=None)
        _train_rank(config, out, overwrite, checkpoints, reporter)
    else:
        _train_alone(
            dataclasses.replace(config, cluster=None), out, overwrite, checkpoints, reporter
        )


def _train_alone(
    config: RunConfig, out: Path, overwrite: bool, options: CheckpointOptions, reporter: Reporter
) -> None:
    from twml_ops.training.checkpoints import RunCheckpoints
    from twml_ops.training.cluster import checkpoint_dir
    from twml_ops.training.run_folder import new_folder

    with new_folder(out, overwrite, reporter=reporter) as folder:
        saved = RunCheckpoints(checkpoint_dir(out), config, options, overwrite, reporter)
        with contextlib.closing(saved):
            result = _train_to(folder, out, config, reporter, checkpoints=saved)
    _end(result, out, saved)


def _train_in_cluster(
    config: RunConfig,
    out: Path,
    overwrite: bool,
    resume: bool,
    asked: RunConfig,
    reporter: Reporter,
) -> None:
    """Trains as the chief, which writes the folder of the run, or as another worker."""
    from twml_ops.training.cluster import cluster_role
    from twml_ops.training.cluster_checkpoints import ClusterCheckpoints
    from twml_ops.training.cluster_runner import ClusterRunner
    from twml_ops.training.model import with_learning_rate
    from twml_ops.training.run import train as train_model
    from twml_ops.training.run_folder import new_folder

    if cluster_role() == "worker":

        def runner_of_worker(config: RunConfig) -> ClusterRunner:
            return ClusterRunner(config, out, out, reporter, resume)

        # The process ends with the training.
        train_model(config, reporter=reporter, cluster_runner=runner_of_worker, asked=asked)
        return
    config = with_learning_rate(config)
    with new_folder(out, overwrite, reporter=reporter) as folder:
        saved = ClusterCheckpoints(out, config, resume, overwrite)

        def runner_of_chief(config: RunConfig) -> ClusterRunner:
            return ClusterRunner(config, folder, out, reporter, resume)

        result = _train_to(
            folder, out, config, reporter, cluster_runner=runner_of_chief, asked=asked
        )
    _end(result, out, saved)


def _train_rank(
    config: RunConfig, out: Path, overwrite: bool, options: CheckpointOptions, reporter: Reporter
) -> None:
    """Trains as one of several peers, of which the first writes the folder of the run."""
    from twml_ops.peers.launch import RESTARTS
    from twml_ops.training.peers import PeerCheckpoints, make_group, rank_checkpoint_dir
    from twml_ops.training.run_folder import new_folder

    group, asked = make_group(config), config
    if config.epochs is None:  # peers choose nothing by validation
        config = dataclasses.replace(config, validation="none")
    if int(os.environ.get(RESTARTS, "0")):
        options = dataclasses.replace(options, resume=True)
    try:
        # Each rank has a folder: any of them may be the first in the end.
        with new_folder(out, overwrite, lock=group.original_rank == 0, reporter=reporter) as folder:
            checkpoints = rank_checkpoint_dir(out, group.original_rank)
            saved = PeerCheckpoints(checkpoints, config, options, overwrite, group, reporter)
            with contextlib.closing(saved):
                try:
                    result = _train_to(
                        folder, out, config, reporter, checkpoints=saved, group=group, asked=asked
                    )
                except SystemExit:  # the end of another rank than the first
                    saved.remove()
                    raise
        _end(result, out, saved)
    except Exception as e:
        if group.size == 1:
            raise
        group.leave(one_line(e))


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

    group = options.get("group")
    try:
        result = train_model(
            config,
            reporter=reporter,
            logs=folder / TENSORBOARD if group is None or group.rank == 0 else None,
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
    """Publishes, removes checkpoints and prints, after the folder of the run is complete."""
    from twml_ops.cli.reporter import print_result, print_total
    from twml_ops.cli.terminal import make_console
    from twml_ops.training.checkpoints import RunCheckpoints

    checkpoints.remove()
    if isinstance(checkpoints, RunCheckpoints):
        checkpoints.publish_final(result.model)
    files = "the report, the model and the metrics"
    console = make_console()
    print_result(console, result, files, out)
    if result.phases is not None:
        print_total(console, result.phases.total())
