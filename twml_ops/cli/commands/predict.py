"""`twml-ops predict`: writes the predicted probability of each example."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import BatchSize, Data, Debug, Overwrite, Run


def predict(
    run: Run,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: the standard output.", show_default=False),
    ] = None,
    batch_size: BatchSize = 8192,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Writes the predicted probability of each example on a line of its own, in order.

    With several labels a line has a probability for each, in the order of the schema, with tabs
    between them. CSV, Parquet and TFRecord files need the columns of the features only.
    """
    from twml_ops.cli.runs.evaluate import predict_run

    predict_run(run, data, batch_size, out, overwrite)
