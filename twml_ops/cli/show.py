"""What the commands print: a few lines and one table."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.cli.report import explain
from twml_ops.cli.terminal import console
from twml_ops.data import Source

__all__ = ["console", "data", "metrics", "model"]


def data(console: Console, train: Source, held_out: Source, *sizes: int) -> None:
    """One line on what is trained and evaluated on, one on the features."""
    console.print(
        f"[bold]data [/]  {escape(train.name)}: {sizes[0]:,} examples, "
        f"evaluated on {escape(held_out.name)}: {sizes[1]:,}",
        soft_wrap=True,
    )
    s = train.schema
    groups = {"continuous": len(s.continuous), "categorical": len(s.categorical)}
    parts = [f"{n} {name} features" for name, n in groups.items() if n]
    parts += [f"sparse ids below {s.sparse_dim:,}"] if s.sparse_dim else []
    console.print(f"        {', '.join(parts)}; positive: {escape(s.label)}", soft_wrap=True)


def model(console: Console, model: tf.keras.Model, optimizer: str) -> None:
    """One line on what is trained."""
    count = model.count_params()
    console.print(f"[bold]model[/]  {model.name}: {count:,} weights, trained by {optimizer}")


def metrics(
    console: Console, values: Mapping[str, float], before: Mapping[str, float] | None = None
) -> None:
    """The metrics, one a row, each explained; those `before` a calibration next to them."""
    table = Table(box=box.SIMPLE_HEAD, show_header=before is not None, pad_edge=False)
    table.add_column(style="bold")
    if before is not None:
        table.add_column("before", justify="right")
    table.add_column("after", justify="right", style="cyan")
    table.add_column(style="dim")
    for row in explain(values, before):
        numbers = [row["value"]] if before is None else [row["before"], row["value"]]
        table.add_row(row["name"], *numbers, row["note"])
    console.print(table)
