"""`twml-ops schema`: the features of a data set, to look at or to edit."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, Debug

if TYPE_CHECKING:
    from rich.table import Table

    from twml_ops.data import Schema


class Format(str, Enum):
    """How the schema is written."""

    YAML = "yaml"
    JSON = "json"
    TABLE = "table"


def schema(
    data: Annotated[str, typer.Argument(help=f"Examples: {SOURCES}.", show_default=False)],
    format: Annotated[Format, typer.Option(help="How it is written.")] = Format.YAML,
    debug: Debug = False,
) -> None:
    """Writes the features of a data set: their names and kinds.

    `twml-ops schema DATA > features.yaml` makes a file to edit: the kind of a column, its sample
    weights, labels, time and group. `open_source(DATA, schema="features.yaml")` reads with it.
    """
    from twml_ops.data import open_source, schema_to_text

    found = open_source(data).schema
    if format is not Format.TABLE:
        print(schema_to_text(found, format.value), end="")
        return
    from twml_ops.cli.render import run_summary

    run_summary.console().print(_table(found))


def _table(found: Schema) -> Table:
    """One row a column."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("column", style="bold")
    table.add_column("kind")
    table.add_column("", style="dim")
    for feature in found.features:
        notes = [f"weights in {feature.weights}"] if feature.weights else []
        notes += [f"ids below {feature.dim:,}"] if feature.dim else []
        table.add_row(escape(feature.name), feature.kind, escape(", ".join(notes)))
    for name in found.labels:
        table.add_row(escape(name), "label", escape(f"positive: {found.label}"))
    for use in ("weight", "time", "group"):
        if name := getattr(found, use):
            table.add_row(escape(name), use, "")
    return table
