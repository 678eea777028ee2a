"""`twml-ops train`: trains a model, evaluates it, and writes the folder of the run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from twml_ops.cli.options import (
    NO_COLUMNS,
    SOURCES,
    ColumnOptions,
    Debug,
    HelpAll,
    Optimizer,
    advanced,
    expanded,
    given_options,
)
from twml_ops.training.config import (
    DEFAULT_EPOCHS,
    DEFAULT_TIME_LIMIT,
    CheckpointOptions,
    ClusterOptions,
    RunConfig,
)
from twml_ops.training.errors import UserError

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
            help="File with the kinds of the columns of CSV, Parquet or TFRecord files, as "
            "`twml-ops schema` writes it. Default: kinds are guessed from names, types and values.",
            show_default=False,
        ),
    ] = None,
    columns: ColumnOptions = NO_COLUMNS,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Repeat a run: its folder, its run.json, or a JSON file with some of the fields "
            "of one. Other options of the command line override it.",
            show_default=False,
        ),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Continue the training of a finished run, on other --data with the same "
            "features. The model and the defaults of all other options are taken from the run.",
            show_default=False,
        ),
    ] = RunConfig.from_run,
    new_categories: Annotated[
        bool,
        _more(
            help="With --from, in models on fields: give rows to categories that are frequent in "
            "the new data and have none."
        ),
    ] = RunConfig.new_categories,
    model: Annotated[
        str,
        typer.Option(
            help="Name of the model (`twml-ops info` lists them), FILE.py:FUNCTION of a function "
            "`build(schema, dataset, *, ...)` that returns a Keras model, or auto: try several "
            "models and options, and take those with the lowest validation loss. Default: dcn, or "
            "sparse_mlp if all features are raw sparse features, more than 256.",
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
            help="Learning rate. Default: depends on the optimizer and the model.",
            show_default=False,
        ),
    ] = RunConfig.learning_rate,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Examples in a batch. Default: 256; for the default models up to 1024, depending "
            "on the number of examples. In a cluster: the batch of each worker; synchronous "
            "workers divide the default among themselves.",
            show_default=False,
        ),
    ] = RunConfig.batch_size,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Passes over all training data, without validation data. Default: chosen by "
            f"early stopping; {DEFAULT_EPOCHS} without validation, or if the validation data "
            "would be fewer than 100 examples.",
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
            help="Keep the optimizer's slots in the run, so that a run --from it continues with "
            "them. They take at least as much space as the weights.",
        ),
    ] = RunConfig.save_slots,
    storage: Annotated[
        str | None,
        _storage(
            metavar="DIR",
            help="Keep the rows of large tables, with the optimizer's slots, in files in this "
            "folder (on a fast local disk), and --cache-rows of each table in memory. In a cluster "
            "each server keeps its parts of the tables in a subfolder on its own host. Each epoch "
            "then ends without the average of the weights.",
            show_default=False,
        ),
    ] = RunConfig.storage,
    cache_rows: Annotated[
        int,
        _storage(
            min=1,
            help="With --storage: rows of a table that are kept in memory, at least the distinct "
            "ids of a batch. Tables with at most this many rows are completely in memory. "
            "`twml-ops tables` predicts the hit rates.",
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
            help="After early stopping, train a new model on all training data for the best number "
            "of epochs, or keep the weights of the best epoch.",
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
    plan: Annotated[
        str | None,
        _cluster(
            help="JSON file of --out-plan of `twml-ops plan`: how each table of --model is "
            "divided, in place of --partition-axis.",
            metavar="PATH",
        ),
    ] = ClusterOptions.plan,
    wire_dtype: Annotated[
        str,
        _cluster(
            help="float32, bfloat16, float16 or int8: data type of products in messages, and of "
            "their gradients.",
        ),
    ] = ClusterOptions.wire_dtype,
    gradient_wire_dtype: Annotated[
        str | None,
        _cluster(
            help="float32, bfloat16, float16 or int8: data type of the gradients of products in "
            "messages. [default: as --wire-dtype]",
        ),
    ] = ClusterOptions.gradient_wire_dtype,
    exchange_every: Annotated[
        int,
        _cluster(
            min=1,
            help="Number of batches after which a worker exchanges messages with the servers. With "
            "more, servers need less CPU time, and workers compute with older tables. Not with "
            "--mode sync.",
        ),
    ] = ClusterOptions.exchange_every,
    micro_batches: Annotated[
        int | None,
        _cluster(
            min=1,
            help="With --mode sync: number of micro-batches of a step, a power of two and a "
            "multiple of the number of workers. The weights then depend neither on the number of "
            "workers nor on the servers and the plan. --batch-size is the size of a micro-batch.",
        ),
    ] = ClusterOptions.micro_batches,
    steps_per_execution: Annotated[
        int,
        _cluster(
            min=1,
            help="Steps in a call of TensorFlow, rounded up to a multiple of --exchange-every. "
            "With more, a step needs less CPU time, but the first step begins later.",
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
            help="Rows of tables, with their slots, that a checkpoint contains. full: all rows. "
            "one-shot: the rows changed since the first checkpoint. consecutive: since the one "
            "before. intermittent: since the last one with all rows, which is written again when "
            "that saves bytes.",
        ),
    ] = RunConfig.checkpoint_policy,
    checkpoint_bits: Annotated[
        int,
        _checkpoint(
            help="Bits of a weight of a table in checkpoints: 32 (not rounded), 8, 4, 3 or 2. With "
            "fewer than 32, a continued run is not equal to one that was not stopped.",
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
            help="Continue a stopped run from its last checkpoint, if it has one. The result is "
            "equal to that of a run that was not stopped, unless checkpoints are quantized. In a "
            "cluster: continue the run of an earlier start of the cluster.",
        ),
    ] = False,
    publish: Annotated[
        Path | None,
        _checkpoint(
            metavar="DIR",
            help="Write each checkpoint, and the final model, to this folder as the next version "
            "of a scorer, for `twml-ops serve DIR`, with the changed rows of tables or all rows. "
            "In a cluster the evaluator writes the versions, among peers the first rank.",
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
    from twml_ops.cli.run_task import run_task
    from twml_ops.training.config import cluster_role, is_rank

    given = given_options(ctx)
    in_cluster = cluster_role() != "alone"
    given.pop("publish", None)
    if is_rank():
        _check_options_of_peers(given)
    checkpoints = checkpoint_options(
        *(checkpoint_every, checkpoint_keep, resume, given, in_cluster, publish)
    )
    run_task(configure(config, given, options or []), out, overwrite, checkpoints)


def _check_options_of_peers(given: dict[str, Any]) -> None:
    """Refuses the options that have no effect on peers."""
    from twml_ops.cli.configure import option_of

    of_servers = {field.name for field in dataclasses.fields(ClusterOptions)}
    for name in given:
        if name in of_servers - {"checkpoint_every", "checkpoint_keep"}:
            raise UserError(
                f"{option_of(name)}: is an option of parameter servers, which peers do not have; "
                "`twml-ops launch --help` lists the options of peers"
            )


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
            to be published without checkpoints.
    """
    match = _EVERY.fullmatch(every)
    if match is None:
        raise UserError(
            "--checkpoint-every: expected steps, such as 1000, seconds, such as 30s, or minutes, "
            f"such as 10m, got {every!r}"
        )
    number, unit = int(match.group(1)), match.group(2)
    if publish is not None and not (in_cluster or number):
        raise UserError("--publish: versions cannot be published without checkpoints")
    if given.pop("checkpoint_every", None) is not None and in_cluster:
        if unit or not number:
            raise UserError(f"--checkpoint-every: a cluster counts steps, got {every!r}")
        given["checkpoint_every"] = number
    if not unit:
        return CheckpointOptions(number or None, None, keep, resume, publish)
    seconds = number * (60.0 if unit == "m" else 1.0)
    return CheckpointOptions(None, seconds or None, keep, resume, publish)
