"""`twml-ops schema`: shows the features of a data set, or writes them to edit."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, Debug


class Format(str, Enum):
    """Formats in which a schema can be written."""

    YAML = "yaml"
    JSON = "json"
    TABLE = "table"


def schema(
    data: Annotated[str, typer.Argument(help=f"Examples: {SOURCES}.", show_default=False)],
    format: Annotated[Format, typer.Option(help="Format of the output.")] = Format.YAML,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Name of the label column; repeat for several. Default: label."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Writes the features of a data set: their names and kinds.

    `twml-ops schema DATA > features.yaml` writes a file to edit: the kind of a column, its sample
    weights, labels, time and group. `open_source(DATA, schema="features.yaml")` reads with it.
    """
    from twml_ops.cli.runs.schema import show_schema

    show_schema(data, format.value, label)
