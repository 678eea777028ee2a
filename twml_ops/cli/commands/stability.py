"""`twml-ops stability`: measures how much repeated training runs differ."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import BatchSize, Data, Debug


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

    First with synchronous steps in one thread, then by Hogwild: with several threads that update
    the tables without locks.
    """
    from twml_ops.cli.runs.stability import StabilityOptions, measure_stability

    options = StabilityOptions(
        data, evaluation, model, optimizer, batch_size, epochs, runs, threads, seed
    )
    measure_stability(options, as_json)
