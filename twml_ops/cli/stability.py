"""`twml-ops stability`: measures how much repeated training runs differ."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import BatchSize, Data, Debug

if TYPE_CHECKING:
    from rich.console import Console

    from twml_ops.training.stability import RepeatedRuns, StabilityOptions


def stability(
    data: Data,
    evaluation: Annotated[
        str | None,
        typer.Option("--eval", help="Examples to evaluate on; see train.", show_default=False),
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "sparse_mlp",
    optimizer: Annotated[str, typer.Option(help="Name of the optimizer; see train.")] = "adagrad",
    batch_size: BatchSize = 256,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 1,
    runs: Annotated[int, typer.Option(min=2, help="Number of runs with each kind of steps.")] = 5,
    threads: Annotated[int, typer.Option(min=2, help="Threads of a Hogwild run.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of all runs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Trains the same model from the same seed several times, and prints the spread of log loss.

    The first runs have synchronous steps in one thread. In the others (Hogwild) several threads
    update the tables without locks.
    """
    from twml_ops.training.stability import StabilityOptions

    options = StabilityOptions(
        data, evaluation, model, optimizer, batch_size, epochs, runs, threads, seed
    )
    measure_stability(options, as_json)


def measure_stability(options: StabilityOptions, as_json: bool) -> None:
    """Repeats a training run, with synchronous steps and by Hogwild, and prints the log losses.

    Args:
        options: what to train and how often.
        as_json: print JSON when all runs are done, instead of a line after each kind.

    Raises:
        UserError: the optimizer is unknown.
        ValueError: the model is unknown, or data cannot be read.
    """
    from twml_ops.cli.console import make_console, print_json
    from twml_ops.training.stability import repeat_runs

    console = make_console()
    results = []
    for result in repeat_runs(options):
        results.append(result)
        if not as_json:
            print_repeated_runs(console, result)
    if as_json:
        print_json([dataclasses.asdict(result) for result in results])


def print_repeated_runs(console: Console, result: RepeatedRuns) -> None:
    """Prints the mean, the spread and the list of the losses."""
    losses = " ".join(f"{loss:.6f}" for loss in result.losses)
    console.print(
        f" {result.name:<12} log loss {result.mean:.6f}, spread {result.spread:.2e} "
        f"(largest - smallest), {result.examples_per_second:,.0f} examples/s: {losses}",
        soft_wrap=True,
    )
