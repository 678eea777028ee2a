"""The features of a data set, as text or as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from twml_ops.cli.render.schema_table import schema_table
from twml_ops.cli.render.terminal import make_console
from twml_ops.data import open_source, schema_to_text


def show_schema(
    data: str, format: Literal["yaml", "json", "table"], labels: Sequence[str] | None = None
) -> None:
    """Prints the features of `data`.

    Args:
        data: SOURCE string.
        format: "yaml" or "json", which `open_source` reads, or a table for the terminal.
        labels: names of the label columns; None: `label`.

    Raises:
        FileNotFoundError: the data do not exist.
        DataError: the data cannot be read.
    """
    source = open_source(data, labels=labels, drop_unusable=True)
    schema, dropped = source.schema, source.dropped
    if format == "table":
        console = make_console()
        console.print(schema_table(schema))
        for name, why in dropped.items():
            console.print(f"not used: {name}, {why}", markup=False)
    else:
        print(schema_to_text(schema, format, dropped), end="")
