"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from twml_ops.cli.errors import set_debug

SOURCES = (
    "flights, criteo:PATH, libsvm:PATH, csv:GLOB, tfrecord:GLOB or parquet:GLOB, or the path of a "
    "file or folder whose suffix determines the format (clicks.csv); "
    "PATH may be s3:// or gs://, may end in .gz, and PATH[START:STOP] is a range of rows"
)

Run = Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)]
Data = Annotated[str, typer.Option(help=f"Examples: {SOURCES}.", show_default=False)]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples in a batch.")]
ConfigFile = Annotated[
    Path,
    typer.Option(help="JSON file to write, for --config of `twml-ops train`.", show_default=False),
]
EvalOfTrain = Annotated[
    str | None,
    typer.Option(
        "--eval",
        help="Evaluation data of the later `train`, which are not read here. Default: the same "
        "part of --data as in `train`, which is then not used here.",
        show_default=False,
    ),
]
SchemaOfTrain = Annotated[
    str | None,
    typer.Option(
        "--schema", help="File with the kinds of the columns, as in `train`.", show_default=False
    ),
]
Optimizer = Annotated[
    str, typer.Option(help="adagrad, lazy_adam, rowwise_adagrad, ftrl, momentum or sgd.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file --out.")]


def _columns(metavar: str, text: str) -> Any:
    """An option of `ColumnOptions`, which the help shows in the panel about columns."""
    panel = "What columns are (CSV, Parquet, TFRecord)"
    return typer.Option(metavar=metavar, help=text, show_default=False, rich_help_panel=panel)


@dataclasses.dataclass(frozen=True)
class ColumnOptions:
    """What the options of a command say of columns. `expanded` makes options of the fields."""

    label: Annotated[
        list[str] | None,
        _columns("NAMES", "Label column; separate several by commas. Default: label."),
    ] = None
    positive_label: Annotated[
        str | None,
        _columns(
            "VALUE",
            "Value of the label column for which the label is 1; for all other values it is 0. "
            "Default: the column must contain 0 and 1, or yes and no.",
        ),
    ] = None
    time: Annotated[
        str | None,
        _columns(
            "NAME",
            "Column with the time of each example: the latest examples are held out for "
            "evaluation and validation. Default: a column that looks like a time, if any.",
        ),
    ] = None
    time_features: Annotated[
        list[str] | None,
        _columns(
            "NAMES",
            "Categorical features that are made of the time of the examples, in UTC: hour, "
            "weekday, month, hour_of_week, or COLUMN.hour and so on for another column of "
            "times; separate several by commas. Default: none.",
        ),
    ] = None
    weight: Annotated[str | None, _columns("NAME", "Column of sample weights.")] = None
    group: Annotated[
        str | None,
        _columns(
            "NAME",
            "Column with the user or request of each example, for --validation group. It is also "
            "a feature, unless --drop names it.",
        ),
    ] = None
    categorical: Annotated[
        list[str] | None, _columns("NAMES", "Columns of categories; separate several by commas.")
    ] = None
    numeric: Annotated[
        list[str] | None, _columns("NAMES", "Columns of numbers; separate several by commas.")
    ] = None
    drop: Annotated[
        list[str] | None,
        _columns("NAMES", "Columns that are not used; separate several by commas."),
    ] = None


NO_COLUMNS = ColumnOptions()

Debug = Annotated[
    bool,
    typer.Option("--debug", callback=set_debug, help="Show the traceback of an error."),
]


_ADVANCED: set[str] = set()


def advanced(panel: str) -> Callable[..., Any]:
    """`typer.Option` for the options of a panel that `--help` leaves out and `--help-all` shows.

    Args:
        panel: title of the panel. The command has a parameter of the type `HelpAll`.
    """
    _ADVANCED.add(panel)
    return functools.partial(typer.Option, rich_help_panel=panel)


class Command(TyperCommand):
    """A command whose `--help` shows the options that are used every day, if it has `--help-all`.

    Attributes:
        shows_all: whether the help has all options.
    """

    shows_all = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help."""
        left_out: list[Any] = []
        if not self.shows_all and any(p.name == "help_all" for p in self.params):
            left_out = [p for p in self.params if getattr(p, "rich_help_panel", None) in _ADVANCED]
        for option in left_out:
            option.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for option in left_out:
                option.hidden = False


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        command = context.command
        assert isinstance(command, Command)
        command.shows_all = True
        try:
            typer.echo(context.get_help())
        finally:
            command.shows_all = False
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", callback=_show_all, is_eager=True, help="Show all options and exit."
    ),
]


def command_line(*without: str) -> str:
    """The command line of this process, as a user would type it.

    Args:
        *without: arguments that are left out.
    """
    return shlex.join(["twml-ops", *(a for a in sys.argv[1:] if a not in without)])


def given_options(context: typer.Context) -> dict[str, Any]:
    """The parameters of a command that the user gave, by name; the others have their defaults."""
    given = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            given[name] = value
    return given


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has an option for each field of its parameter `columns`."""
    hints = typing.get_type_hints(command, include_extras=True)
    fields = typing.get_type_hints(ColumnOptions, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for given in inspect.signature(command).parameters.values():
        kind = inspect.Parameter.KEYWORD_ONLY
        if hints[given.name] is ColumnOptions:
            parameters += [
                inspect.Parameter(name, kind, default=None, annotation=each)
                for name, each in fields.items()
            ]
        else:
            parameters.append(given.replace(kind=kind, annotation=hints[given.name]))

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        columns = ColumnOptions(**{name: values.pop(name) for name in fields})
        command(columns=columns, **values)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper
