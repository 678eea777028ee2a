"""The features of a data set, as text or as a table."""

from __future__ import annotations

import warnings
from typing import Literal

from twml_ops.cli.render.schema_table import columns_table, schema_table
from twml_ops.cli.render.terminal import make_console
from twml_ops.data import ColumnUses, DataWarning, open_source, schema_to_text

NO_USES = ColumnUses()


def show_schema(
    data: str, format: Literal["yaml", "json", "table"], uses: ColumnUses = NO_USES
) -> None:
    """Prints what the columns of `data` are.

    Args:
        data: SOURCE string.
        format: "yaml" or "json", which `open_source` reads, or a table for the terminal.
        uses: what the user says of columns.

    Raises:
        FileNotFoundError: the data do not exist.
        DataError: the data cannot be read.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*: guessed from names", DataWarning)
        source = open_source(data, uses=uses)
    schema, findings = source.schema, source.findings
    if format == "table":
        console = make_console()
        console.print(columns_table(findings, schema) if findings else schema_table(schema))
    else:
        print(schema_to_text(schema, format, findings), end="")
