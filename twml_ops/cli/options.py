"""Options that several commands share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from twml_ops.cli.errors import set_debug

SOURCES = (
    "flights, criteo:PATH, libsvm:PATH, csv:GLOB, tfrecord:GLOB or parquet:GLOB, or the path of a "
    "file or folder whose suffix says the kind (clicks.csv); "
    "PATH may end in .gz, and PATH[START:STOP] is a range of rows"
)

Run = Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)]
Data = Annotated[str, typer.Option(help=f"Examples: {SOURCES}.", show_default=False)]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples in a batch.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file --out.")]


def _columns(metavar: str, text: str) -> Any:
    """An option that says what columns are."""
    panel = "What columns are (CSV, Parquet, TFRecord)"
    return typer.Option(metavar=metavar, help=text, show_default=False, rich_help_panel=panel)


Label = Annotated[
    list[str] | None,
    _columns("NAMES", "Label column; several with commas or by repeating. Default: label."),
]

Time = Annotated[
    str | None,
    _columns(
        "NAME",
        "Column of the times of examples: the latest ones are held out for evaluation and "
        "validation. Default: a column that looks like it, if any.",
    ),
]

Weight = Annotated[str | None, _columns("NAME", "Column of sample weights.")]

Group = Annotated[
    str | None,
    _columns(
        "NAME", "Column that examples of one user or request share, which is a feature as well."
    ),
]

Categorical = Annotated[
    list[str] | None, _columns("NAMES", "Columns of categories; several with commas.")
]

Numeric = Annotated[list[str] | None, _columns("NAMES", "Columns of numbers; several with commas.")]

Drop = Annotated[
    list[str] | None, _columns("NAMES", "Columns that are not used; several with commas.")
]

Debug = Annotated[
    bool,
    typer.Option("--debug", callback=set_debug, help="Show the traceback of an error."),
]


def command_line(*without: str) -> str:
    """The command of this process, as one types it.

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
