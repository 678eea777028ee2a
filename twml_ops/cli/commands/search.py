"""`twml-ops search`: searches for the architecture of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import (
    SOURCES,
    BatchSize,
    Categorical,
    Debug,
    Drop,
    Group,
    Label,
    Numeric,
    Overwrite,
    Time,
    Weight,
    given_options,
)
from twml_ops.cli.runs.config import RunConfig

LIST = "INTEGERS"


def search(
    ctx: typer.Context,
    data: Annotated[str, typer.Option(help=f"Examples: {SOURCES}.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(
            help="JSON file to write, for --config of `twml-ops train`.", show_default=False
        ),
    ],
    eval_: Annotated[
        str | None,
        typer.Option(
            "--eval",
            help="Examples that `train` is to evaluate on. They are not read. Default: a part of "
            "--data, as of `train`, which is then not used here.",
            show_default=False,
        ),
    ] = None,
    schema_file: Annotated[
        str | None,
        typer.Option(
            "--schema", help="File with the uses of the columns, as of `train`.", show_default=False
        ),
    ] = None,
    label: Label = None,
    time: Time = None,
    weight: Weight = None,
    group: Group = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    drop: Drop = None,
    field_units: Annotated[
        str,
        typer.Option(metavar=LIST, help="Widths of the vectors of each field; empty: no choice."),
    ] = "1,2,4,8",
    max_rows: Annotated[
        str,
        typer.Option(
            metavar=LIST,
            help="Numbers of categories of each field with a vector of their own; empty: no "
            "choice.",
        ),
    ] = "100,1000,10000,100000",
    interactions: Annotated[
        str,
        typer.Option(
            help="Interactions beside linear: some of attention, convolution, cross and dot."
        ),
    ] = "dot,cross,attention",
    hidden: Annotated[
        list[str],
        typer.Option(
            metavar=LIST,
            help="Widths of a dense layer; 0: the layer may be left out. Once for each layer.",
        ),
    ] = ["16,32,64,128", "0,16,32,64"],  # noqa: B006  (typer copies it)
    cost: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FACTOR",
            help="What the log loss may increase for all flops, bytes or latency of the largest "
            "network. Can be repeated.",
        ),
    ] = ["flops=0.001"],  # noqa: B006
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Give an option of the model dhen that is not searched. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    warm_up: Annotated[
        int, typer.Option(min=0, help="Passes over the data before probabilities are trained.")
    ] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Passes in which they are trained.")] = 3,
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate of the search and of `train`, with lazy_adam.")
    ] = 0.002,
    batch_size: BatchSize = RunConfig.batch_size,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the search and of `train`.")
    ] = RunConfig.seed,
    validation: Annotated[
        str,
        typer.Option(
            help="Part of the training data on which probabilities are trained, as of `train`: "
            "time, order, random, group or auto."
        ),
    ] = RunConfig.validation,
    validation_share: Annotated[
        float,
        typer.Option(help="Size of that part, as a share of the training data, between 0 and 1."),
    ] = RunConfig.validation_share,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Searches for widths, depth, rows of tables and interactions, at low costs.

    All networks are trained at once with shared weights, and the probabilities of the choices with
    them (differentiable architecture search). The result is a configuration of the model dhen for
    `twml-ops train --config`.
    """
    from twml_ops.cli.runs.configure import configure
    from twml_ops.cli.runs.search import Choices
    from twml_ops.cli.runs.search import search as run

    del label, time, weight, group, categorical, numeric, drop  # of `configure`
    del eval_, schema_file, batch_size, seed, validation, validation_share  # of `configure`
    given = given_options(ctx)
    given.pop("epochs", None)  # of the search, not of the run
    fixed = {"data": data, "model": "dhen", "optimizer": "lazy_adam"}
    config = configure(None, {**given, **fixed, "learning_rate": learning_rate}, options or [])
    choices = Choices(field_units, max_rows, interactions, tuple(hidden), tuple(cost))
    run(config, choices, (warm_up, epochs), out, overwrite)
