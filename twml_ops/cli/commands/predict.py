"""`twml-ops predict`: a probability for every example."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import BatchSize, Data, Debug, Run


def predict(
    run: Run,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, default: the standard output.", show_default=False),
    ] = None,
    batch_size: BatchSize = 8192,
    debug: Debug = False,
) -> None:
    """Writes the predicted probability of each example on a line of its own, in order."""
    import numpy as np
    from rich.console import Console

    from twml_ops.analysis import scoring
    from twml_ops.cli.render.progress import Bar
    from twml_ops.cli.runs.folder import new_file
    from twml_ops.cli.runs.trained_run import TrainedRun
    from twml_ops.data import original_errors

    trained = TrainedRun(run)
    source = trained.source(data)
    with original_errors(source), Bar(Console(stderr=True), source.name, None) as bar:
        scores = scoring.score(trained.model, source.dataset(batch_size), bar.add)
    if out is None:
        np.savetxt(sys.stdout, scores.predictions, fmt="%.7g")
    else:
        with new_file(out) as path:
            np.savetxt(path, scores.predictions, fmt="%.7g")
