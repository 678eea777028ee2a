"""The features of a data set as a table for the terminal."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table

from twml_ops.data import Schema


def schema_table(schema: Schema) -> Table:
    """A table with one row per column of the data."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("column", style="bold")
    table.add_column("kind")
    table.add_column("", style="dim")
    for feature in schema.features:
        notes = [f"weights in {feature.weights}"] if feature.weights else []
        notes += [f"ids below {feature.dim:,}"] if feature.dim else []
        table.add_row(escape(feature.name), feature.kind, escape(", ".join(notes)))
    for name in schema.labels:
        table.add_row(escape(name), "label", escape(f"positive: {schema.label}"))
    for use in ("weight", "time", "group"):
        if name := getattr(schema, use):
            table.add_row(escape(name), use, "")
    return table
