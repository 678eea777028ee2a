"""`twml-ops evaluate`: computes the metrics of a finished run on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.options import SOURCES, BatchSize, Debug, Run


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
    evaluate_run(run, data, batch_size, as_json)


def evaluate_run(run: Path, data: str | None, batch_size: int, as_json: bool) -> None:
    """Evaluates a finished run and prints its metrics.

    Args:
        run: folder of the run.
        data: SOURCE to evaluate on; None: the evaluation data of the run.
        batch_size: number of examples in a batch.
        as_json: print JSON instead of a table.

    Raises:
        UserError: the folder is not a finished run.
        ValueError: data cannot be read.
    """
    from twml_ops.analysis import scoring
    from twml_ops.cli.console import make_console, make_error_console, print_json
    from twml_ops.cli.reporter import ConsoleReporter, print_evaluation
    from twml_ops.data import original_errors
    from twml_ops.training.evaluation import score_source, throughput
    from twml_ops.training.sources import checked_features
    from twml_ops.training.trained_run import TrainedRun

    trained = TrainedRun(run)
    source = trained.source(data)
    with original_errors(source), checked_features(run, source):
        scores = score_source(
            trained.model,
            source,
            ConsoleReporter(make_error_console()),
            title=source.name,
            batch_size=batch_size,
        )
    by_label = scoring.metrics_by_label(scores)
    first = next(iter(scores.values()))
    speed = throughput(len(first.labels), first.seconds)
    metrics = {**scoring.mean_metrics(by_label), **speed}
    if as_json:
        print_json(scoring.with_labels(metrics, by_label))
    else:
        print_evaluation(make_console(), run, source, metrics, by_label)
