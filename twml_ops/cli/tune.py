"""`twml-ops tune`: searches for the options of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import (
    NO_COLUMNS,
    SOURCES,
    BatchSize,
    ColumnOptions,
    ConfigFile,
    Debug,
    EvalOfTrain,
    HelpAll,
    Optimizer,
    Overwrite,
    SchemaOfTrain,
    advanced,
    expanded,
    given_options,
)
from twml_ops.training.config import DEFAULT_BATCH_SIZE, RunConfig

if TYPE_CHECKING:
    from twml_ops.training.tuning import Budget

_stopping = advanced("Early stopping")


@expanded
def tune(
    ctx: typer.Context,
    out: ConfigFile,
    data: Annotated[
        str | None,
        typer.Option(help=f"Examples: {SOURCES}. Required without --config.", show_default=False),
    ] = None,
    eval_: EvalOfTrain = None,
    schema_file: SchemaOfTrain = None,
    columns: ColumnOptions = NO_COLUMNS,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Start from the configuration of a run or of a JSON file, as in `train`.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Name of the model, or FILE.py:FUNCTION.")
    ] = RunConfig.model,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Give an option of the model, which is then not searched. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    optimizer: Optimizer = RunConfig.optimizer,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Learning rate. Default: it is searched.", show_default=False),
    ] = RunConfig.learning_rate,
    batch_size: BatchSize = DEFAULT_BATCH_SIZE,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the training and of the search.")
    ] = RunConfig.seed,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials.")] = 30,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds after which no further trial starts. Default: no limit.",
            show_default=False,
        ),
    ] = None,
    validation: Annotated[
        str,
        _stopping(
            help="Part of the training data by whose loss trials are compared, as in `train`: "
            "time, order, random, group or auto."
        ),
    ] = RunConfig.validation,
    validation_share: Annotated[
        float,
        _stopping(help="Size of that part, as a share of the training data, between 0 and 1."),
    ] = RunConfig.validation_share,
    patience: Annotated[
        int,
        _stopping(
            min=1,
            help="Stop a trial after this many epochs in a row without a lower validation loss.",
        ),
    ] = RunConfig.patience,
    max_epochs: Annotated[
        int, _stopping(min=1, help="Stop a trial after this many epochs in any case.")
    ] = RunConfig.max_epochs,
    overwrite: Overwrite = False,
    debug: Debug = False,
    help_all: HelpAll = False,
) -> None:
    """Searches for the learning rate and the options of a model, on validation data.

    The first trial has the defaults. Trials whose loss after an epoch is above the median of the
    others are stopped. The result is a configuration for `twml-ops train --config`. Needs Optuna:
    pip install "twml_ops[tune]".
    """
    from twml_ops.cli.configure import configure
    from twml_ops.training.tuning import Budget

    given = given_options(ctx)
    given.pop("time_limit", None)  # of the search, not of the run
    tune_to_file(
        configure(config, given, options or []), Budget(trials, time_limit), out, overwrite
    )


def tune_to_file(config: RunConfig, budget: Budget, out: Path, overwrite: bool) -> RunConfig:
    """Searches for options, prints the trials, and writes the best configuration.

    Args:
        config: configuration with the data, the model, and the options that are not searched:
            `model_options`, and the learning rate if there is one.
        budget: when the search ends.
        out: JSON file to write, for `twml-ops train --config`.
        overwrite: replace an existing file.

    Returns:
        The best configuration.

    Raises:
        UserError: Optuna is missing, an option is wrong, `out` cannot be written, there are no
            validation data, or no trial succeeded.
        DataError: data cannot be read.
    """
    from twml_ops.cli.console import make_console
    from twml_ops.cli.reporter import ConsoleReporter, print_tuned
    from twml_ops.training.run_folder import new_file, write_json, write_result
    from twml_ops.training.tuning import check_tuning
    from twml_ops.training.tuning import tune as search

    check_tuning(config)
    console = make_console()
    with new_file(out, overwrite) as file:
        found = search(config, budget, ConsoleReporter(console))
        write_result(file, out, lambda path: write_json(path, found.to_json()))
    print_tuned(console, out)
    return found
