"""`twml-ops evaluate`: the metrics of a finished run on any data."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, BatchSize, Debug, Run


def evaluate(
    run: Run,
    data: Annotated[
        str | None,
        typer.Option(help=f"Examples: {SOURCES}. Default: those of the run.", show_default=False),
    ] = None,
    batch_size: BatchSize = 8192,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Evaluates a finished run and prints the metrics."""
    from rich.console import Console
    from rich.markup import escape

    from twml_ops.analysis import scoring
    from twml_ops.cli.render import run_summary
    from twml_ops.cli.render.progress import Bar
    from twml_ops.cli.runs.folder import finite
    from twml_ops.cli.runs.trained_run import TrainedRun
    from twml_ops.data import original_errors

    trained = TrainedRun(run)
    source = trained.source(data)
    console = run_summary.console()
    with original_errors(source), Bar(Console(stderr=True), source.name, None) as bar:
        scores = scoring.score(trained.model, source.dataset(batch_size), bar.add)
    n = len(scores.labels)
    speed = {"examples_per_second": n / scores.seconds, "examples": n, "seconds": scores.seconds}
    metrics = {**scoring.metrics(scores), **speed}
    if as_json:
        print(json.dumps(finite(metrics), indent=2))
    else:
        console.print(f"[bold]{escape(str(run))}[/] on {escape(source.name)}", soft_wrap=True)
        run_summary.metrics(console, metrics)
