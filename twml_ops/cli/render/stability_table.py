"""What `twml-ops stability` prints."""

from __future__ import annotations

from rich.console import Console

from twml_ops.cli.results.repeated_runs import RepeatedRuns


def print_repeated_runs(console: Console, result: RepeatedRuns) -> None:
    """Prints the mean, the spread and the list of the losses."""
    losses = " ".join(f"{loss:.6f}" for loss in result.losses)
    console.print(
        f" {result.name:<12} log loss {result.mean:.6f}, spread {result.spread:.2e} "
        f"(largest - smallest), {result.examples_per_second:,.0f} examples/s: {losses}",
        soft_wrap=True,
    )
