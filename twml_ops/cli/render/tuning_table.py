"""What `twml-ops tune-input` prints."""

from __future__ import annotations

from rich.console import Console

from twml_ops.data.tune_pipeline import Trial


def print_trial(console: Console, trial: Trial) -> None:
    """Prints the throughput of a setting and whether it is kept."""
    outcome = "[green]kept[/]" if trial.taken else "[dim]no gain[/]"
    console.print(f" {trial.change:<26} {trial.rate:>14,.0f} examples/s  {outcome}")


def print_best(console: Console, before: Trial, after: Trial, code: str) -> None:
    """Prints the speedup of the best settings, and the code of a pipeline that has them."""
    speedup = after.rate / before.rate
    console.print(f"[bold]{speedup:.1f} × as fast[/] with {after.settings}. The code to paste:")
    console.print(code, highlight=False, markup=False)
