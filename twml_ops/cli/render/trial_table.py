"""What `--model auto` and `twml-ops tune` print: one row for each trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from twml_ops.cli.results.model_choice import ModelChoice
from twml_ops.cli.results.trial import Trial


def describe(trial: Trial) -> str:
    """The model of a trial and the options that differ from its defaults."""
    options = {"learning_rate": f"{trial.learning_rate:.4g}", **trial.model_options}
    return " ".join([trial.model, *(f"{name}={_text(v)}" for name, v in options.items())])


def print_header(console: Console, name: str, examples: int) -> None:
    """Prints on which data the trials are judged, and the titles of the columns."""
    console.print(
        f"[bold]trials[/] judged by the log loss on {escape(name)}: {examples:,} examples",
        soft_wrap=True,
    )
    console.print(
        f"[bold]{'':>4}  {'log loss':<9} {'epochs':>6} {'seconds':>8}  model and options[/]"
    )


def print_trial(console: Console, number: int, trial: Trial, best: bool) -> None:
    """Prints the row of a trial, marked if it is the best one so far."""
    row = f"{number:>4}  {loss_of(trial):<9} {trial.epochs:>6} {trial.seconds:>8,.1f}"
    note = f" ({trial.note})" if trial.note else ""
    style = "cyan" if best else "dim"
    console.print(f"[{style}]{row}  {escape(describe(trial) + note)}[/]", soft_wrap=True)


def print_best(console: Console, choice: ModelChoice) -> None:
    """Prints the chosen model and how long the search took."""
    console.print(
        f"[bold]auto [/]  {escape(describe(choice.trials[choice.best]))}: the best of "
        f"{len(choice.trials)} trials in {choice.seconds:,.1f} s",
        soft_wrap=True,
    )


def print_second(console: Console, trial: Trial, log_loss: float, chosen: bool) -> None:
    """Prints the second model, its loss, that of the default model, and which one is chosen."""
    name = escape(describe(trial))
    console.print(
        f"[bold]second[/] {name}: validation loss {loss_of(trial)}, the first model has "
        f"{log_loss:.5f}; {'chosen' if chosen else 'not chosen'}",
        soft_wrap=True,
    )


def one_line(trial: Trial) -> str:
    """The options of a trial, and its loss or why it has none."""
    result = f"log loss {loss_of(trial)}" if trial.outcome == "finished" else trial.outcome
    return f"{describe(trial)}: {result}"


def print_values(console: Console, data: str, model: str, values: Mapping[str, object]) -> None:
    """Prints the name of the training data, and the options that are searched with their values."""
    console.print(f"[bold]tune [/]  {escape(model)} on {escape(data)}", soft_wrap=True)
    for name, described in values.items():
        console.print(f"        {escape(name)}: {escape(str(described))}", soft_wrap=True)


def print_tuned(console: Console, out: Path) -> None:
    """Prints where the best configuration is and what it is for."""
    console.print(
        f"[dim]the best options are in[/] [bold]{escape(str(out))}[/][dim]; to train with them: "
        f"twml-ops train --config {escape(str(out))} --out FOLDER[/]",
        soft_wrap=True,
    )


def loss_of(trial: Trial) -> str:
    """The loss of a trial, or its outcome if it is not finished."""
    return f"{trial.log_loss:.5f}" if trial.outcome == "finished" else trial.outcome


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
