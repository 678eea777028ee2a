"""`twml-ops search`: searches for the architecture of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from twml_ops.cli.options import (
    NO_COLUMNS,
    SOURCES,
    BatchSize,
    ColumnOptions,
    ConfigFile,
    Debug,
    EvalOfTrain,
    Overwrite,
    SchemaOfTrain,
    expanded,
    given_options,
)
from twml_ops.training.config import DEFAULT_BATCH_SIZE, RunConfig, parse_value
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from twml_ops.research import architecture_search as architectures
    from twml_ops.research.architecture_search import Epoch, SearchResult

LIST = "INTEGERS"


@expanded
def search(
    ctx: typer.Context,
    data: Annotated[str, typer.Option(help=f"Examples: {SOURCES}.", show_default=False)],
    out: ConfigFile,
    eval_: EvalOfTrain = None,
    schema_file: SchemaOfTrain = None,
    columns: ColumnOptions = NO_COLUMNS,
    field_units: Annotated[
        str,
        typer.Option(
            metavar=LIST,
            help="Widths to choose from for the vectors of a field; empty: not searched.",
        ),
    ] = "1,2,4,8",
    max_rows: Annotated[
        str,
        typer.Option(
            metavar=LIST,
            help="Numbers to choose from of the categories of a field that have their own vector; "
            "empty: not searched.",
        ),
    ] = "100,1000,10000,100000",
    interactions: Annotated[
        str,
        typer.Option(
            help="Interactions to choose from besides linear: attention, convolution, cross, dot."
        ),
    ] = "dot,cross,attention",
    hidden: Annotated[
        list[str],
        typer.Option(
            metavar=LIST,
            help="Widths to choose from for a dense layer; 0: no layer. Repeat it for each layer.",
        ),
    ] = ["16,32,64,128", "0,16,32,64"],  # noqa: B006  (typer copies it)
    cost: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FACTOR",
            help="Price of flops, bytes or latency: the log loss that the cost of the largest "
            "network may add. Can be repeated.",
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
        int,
        typer.Option(
            min=0, help="Passes over the data before the probabilities of choices are trained."
        ),
    ] = 1,
    epochs: Annotated[
        int,
        typer.Option(
            min=1, help="Passes over the data in which the probabilities of choices are trained."
        ),
    ] = 3,
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate of the search and of `train`, with lazy_adam.")
    ] = 0.002,
    batch_size: BatchSize = DEFAULT_BATCH_SIZE,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the search and of `train`.")
    ] = RunConfig.seed,
    validation: Annotated[
        str,
        typer.Option(
            help="Part of the training data on which probabilities are trained, as in `train`: "
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
    """Searches for a network with a low loss and low costs: widths, depth, rows and interactions.

    All networks are trained at once and share their weights. The probabilities of the choices are
    trained together with the weights (differentiable architecture search). The result is a
    configuration of the model dhen for `twml-ops train --config`.
    """
    from twml_ops.cli.configure import configure

    del (
        columns,
        eval_,
        schema_file,
        batch_size,
        seed,
        validation,
        validation_share,
    )  # of `configure`
    given = given_options(ctx)
    given.pop("epochs", None)  # of the search, not of the run
    fixed = {"data": data, "model": "dhen", "optimizer": "lazy_adam"}
    config = configure(None, {**given, **fixed, "learning_rate": learning_rate}, options or [])
    choices = Choices(field_units, max_rows, interactions, tuple(hidden), tuple(cost))
    search_to_file(config, choices, (warm_up, epochs), out, overwrite)


class Choices(NamedTuple):
    """The texts of the command line.

    Attributes:
        field_units: widths of vectors.
        max_rows: numbers of rows.
        interactions: names of modules.
        hidden: widths of each dense layer.
        cost: NAME=FACTOR each.
    """

    field_units: str
    max_rows: str
    interactions: str
    hidden: Sequence[str]
    cost: Sequence[str]


def search_to_file(
    config: RunConfig, choices: Choices, passes: tuple[int, int], out: Path, overwrite: bool
) -> RunConfig:
    """Searches, prints the passes, and writes the configuration of what was found.

    Args:
        config: configuration with the data and the options of dhen that are not searched.
        choices: what is searched.
        passes: over the data: of the warm-up, and of the search.
        out: JSON file to write, for `twml-ops train --config`.
        overwrite: replace an existing file.

    Returns:
        The configuration.

    Raises:
        UserError: an option is wrong, `out` cannot be written, or there are no validation data.
        DataError: data cannot be read.
    """
    from twml_ops.cli.console import make_console
    from twml_ops.research import architecture_search as architectures
    from twml_ops.training.run_folder import new_file, write_json, write_result

    if config.validation == "none":
        raise UserError("search needs validation data, so it cannot go with --validation none")
    config = dataclasses.replace(config, cluster=None)
    assert config.learning_rate is not None
    try:
        space = _space(config, choices)
        settings = architectures.Settings(
            costs=_costs(choices.cost),
            warm_up=passes[0],
            epochs=passes[1],
            learning_rate=config.learning_rate,
            seed=config.seed,
        )
    except ValueError as e:
        raise UserError(str(e)) from e
    with new_file(out, overwrite) as file:
        found = _search(config, space, settings)
        config = dataclasses.replace(config, model_options=found[0])
        write_result(file, out, lambda path: write_json(path, config.to_json()))
    print_found(make_console(), found[1], out)
    return config


def _search(
    config: RunConfig, space: architectures.SearchSpace, settings: architectures.Settings
) -> tuple[dict[str, Any], architectures.SearchResult]:
    """The options of the model that was found, and the result of the search."""
    from rich.markup import escape

    from twml_ops import models
    from twml_ops.cli.console import make_console
    from twml_ops.cli.reporter import ConsoleReporter
    from twml_ops.data import original_errors
    from twml_ops.research import architecture_search as architectures
    from twml_ops.training.sources import open_pair
    from twml_ops.training.trials import validation_parts

    console = make_console()
    data, _ = open_pair(config.data, config.eval, schema_file=config.schema_file, uses=config.uses)
    ConsoleReporter(console).columns(data)
    with original_errors(data), console.status(f"reading {escape(data.name)}"):
        parts = validation_parts(config, data)
    if parts is None:
        raise UserError("there are no validation data to search with: use another --validation")
    layout = models.layout_of(models.get("dhen"))
    batches, held_out = (
        part.dataset(config.fixed_batch_size, shuffle=True, seed=config.seed, layout=layout)
        for part in parts
    )
    print_search(console, data.name, parts.validation.name)
    with original_errors(data, *parts):
        try:
            found = architectures.search(
                space,
                data.schema,
                batches,
                held_out,
                settings,
                lambda epoch: print_epoch(console, epoch),
            )
        except ValueError as e:
            raise UserError(str(e)) from e
    return space.options(data.schema, found.architecture), found


def _space(config: RunConfig, choices: Choices) -> architectures.SearchSpace:
    from twml_ops.research import architecture_search as architectures

    fixed = dict(config.model_options)
    dropout = {"dropout": fixed.pop("dropout")} if "dropout" in fixed else {}
    return architectures.SearchSpace(
        field_units=_integers("--field-units", choices.field_units),
        max_rows=_integers("--max-rows", choices.max_rows),
        interactions=parse_value(choices.interactions, Sequence[str]),
        dense=[
            architectures.DenseWidth(f"hidden_{i}", _integers("--hidden", text), **dropout)
            for i, text in enumerate(choices.hidden)
        ],
        **fixed,
    )


def _integers(option: str, text: str) -> list[int]:
    try:
        found: list[int] = parse_value(text, Sequence[int])
    except ValueError as e:
        raise UserError(f"{option}: {e}") from e
    return found


def _costs(texts: Sequence[str]) -> dict[str, float]:
    costs = {}
    for text in texts:
        name, equals, factor = text.partition("=")
        try:
            costs[name] = float(factor if equals else "")
        except ValueError:
            raise UserError(f"--cost {text}: expected NAME=FACTOR") from None
    return costs


def print_search(console: Console, data: str, held_out: str) -> None:
    """Prints the data and the titles of the columns."""
    from rich.markup import escape

    console.print(
        f"[bold]search[/] on {escape(data)}; probabilities are trained on {escape(held_out)}",
        soft_wrap=True,
    )
    console.print(f"[bold]{'':>4}  {'loss':<9} {'held out':<9} {'τ':>5}  expected costs[/]")


def print_epoch(console: Console, epoch: Epoch) -> None:
    """Prints the row of a pass. Costs are shares of the costs of the largest network."""
    held_out = f"{epoch.validation_loss:.5f}" if epoch.searching else "warm-up"
    costs = " ".join(f"{name} {share:.1%}" for name, share in epoch.costs.items())
    console.print(
        f"{epoch.number:>4}  {epoch.loss:<9.5f} {held_out:<9} {epoch.temperature:>5.2f}  {costs}",
        soft_wrap=True,
    )


def print_found(console: Console, found: SearchResult, out: Path) -> None:
    """Prints the architecture, its costs, and what the file is for."""
    from rich.markup import escape

    for name, value in found.architecture.items():
        values = value if isinstance(value, list) else [value]
        console.print(f"        {escape(name)}: {','.join(map(str, values))}", soft_wrap=True)
    for kind, cost in found.costs.items():
        share = cost / found.largest[kind]
        console.print(f"        {kind}: {cost:,.6g}, {share:.1%} of the largest network")
    console.print(
        f"[dim]the options are in[/] [bold]{escape(str(out))}[/][dim]; to train with them: "
        f"twml-ops train --config {escape(str(out))} --out FOLDER[/]",
        soft_wrap=True,
    )
