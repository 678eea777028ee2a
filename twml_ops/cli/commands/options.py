"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from twml_ops.cli import errors

SOURCES = (
    "flights, criteo:PATH, libsvm:PATH, csv:GLOB, tfrecord:GLOB or parquet:GLOB; "
    "PATH may end in .gz, and PATH[START:STOP] is a range of rows"
)

Run = Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)]
Data = Annotated[str, typer.Option(help=f"Examples: {SOURCES}.", show_default=False)]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples in a batch.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file --out.")]
Debug = Annotated[
    bool,
    typer.Option("--debug", callback=errors.set_debug, help="Show the traceback of an error."),
]


def given_options(context: typer.Context) -> dict[str, Any]:
    """The parameters of a command that the user gave, by name; the others have their defaults."""
    given = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            given[name] = value
    return given
