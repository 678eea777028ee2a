"""`twml-ops evaluate`: computes the metrics of a finished run on a data set."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, BatchSize, Debug, Run


def evaluate(
    run: Run,
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Examples: {SOURCES}. Default: the evaluation data of the run.",
            show_default=False,
        ),
    ] = None,
    batch_size: BatchSize = 8192,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Evaluates a finished run and prints the metrics."""
    from twml_ops.cli.runs.evaluate import evaluate_run

    evaluate_run(run, data, batch_size, as_json)
