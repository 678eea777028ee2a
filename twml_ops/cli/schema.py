"""`twml-ops schema`: shows the features of a data set, or writes them to edit."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from twml_ops.cli.options import (
    NO_COLUMNS,
    SOURCES,
    ColumnOptions,
    Debug,
    expanded,
)

if TYPE_CHECKING:
    from twml_ops.data import ColumnUses


class Format(str, Enum):
    """Formats in which a schema can be written."""

    YAML = "yaml"
    JSON = "json"
    TABLE = "table"


@expanded
def schema(
    data: Annotated[str, typer.Argument(help=f"Examples: {SOURCES}.", show_default=False)],
    format: Annotated[Format, typer.Option(help="Format of the output.")] = Format.YAML,
    columns: ColumnOptions = NO_COLUMNS,
    debug: Debug = False,
) -> None:
    """Writes what the columns of a data set are taken for, and why.

    `twml-ops schema DATA > features.yaml` writes a file to edit: the kind of each column, or why it
    is not used, and the sample weights, labels, time and group. `train --schema features.yaml`
    then reads the data by this file.
    """
    from twml_ops.cli.configure import uses_of

    uses = uses_of(columns)
    show_schema(data, format.value, uses)


def show_schema(
    data: str, format: Literal["yaml", "json", "table"], uses: ColumnUses | None = None
) -> None:
    """Prints what the columns of `data` are.

    Args:
        data: SOURCE string.
        format: "yaml" or "json", which `open_source` reads, or a table for the terminal.
        uses: what the user says of columns; None: nothing.

    Raises:
        FileNotFoundError: the data do not exist.
        DataError: the data cannot be read.
    """
    from twml_ops.cli.console import make_console
    from twml_ops.data import ColumnUses, open_source, schema_to_text
    from twml_ops.data.column_uses import without_warnings
    from twml_ops.report.columns import columns_table, schema_table

    with without_warnings():
        source = open_source(data, uses=uses or ColumnUses())
    schema, findings = source.schema, source.findings
    if format == "table":
        console = make_console()
        console.print(columns_table(findings, schema) if findings else schema_table(schema))
    else:
        print(schema_to_text(schema, format, findings), end="")
