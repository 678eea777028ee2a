"""What `twml-ops search` prints: one row for each pass, then what was found."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from twml_ops.search import Epoch, SearchResult


def print_header(console: Console, data: str, held_out: str) -> None:
    """Prints the data and the titles of the columns."""
    console.print(
        f"[bold]search[/] on {escape(data)}; probabilities are trained on {escape(held_out)}",
        soft_wrap=True,
    )
    console.print(f"[bold]{'':>4}  {'loss':<9} {'held out':<9} {'τ':>5}  expected costs[/]")


def print_epoch(console: Console, epoch: Epoch) -> None:
    """Prints the row of a pass. Costs are shares of the costs of the largest network."""
    held_out = f"{epoch.validation_loss:.5f}" if epoch.searching else "warm-up"
    costs = " ".join(f"{name} {share:.1%}" for name, share in epoch.costs.items())
    console.print(
        f"{epoch.number:>4}  {epoch.loss:<9.5f} {held_out:<9} {epoch.temperature:>5.2f}  {costs}",
        soft_wrap=True,
    )


def print_found(console: Console, found: SearchResult, out: Path) -> None:
    """Prints the architecture, its costs, and what the file is for."""
    for name, value in found.architecture.items():
        values = value if isinstance(value, list) else [value]
        console.print(f"        {escape(name)}: {','.join(map(str, values))}", soft_wrap=True)
    for kind, cost in found.costs.items():
        share = cost / found.largest[kind]
        console.print(f"        {kind}: {cost:,.6g}, {share:.1%} of the largest network")
    console.print(
        f"[dim]the options are in[/] [bold]{escape(str(out))}[/][dim]; to train with them: "
        f"twml-ops train --config {escape(str(out))} --out FOLDER[/]",
        soft_wrap=True,
    )
