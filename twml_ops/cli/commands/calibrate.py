"""`twml-ops calibrate`: calibrates the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, Debug, Run


def calibrate(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to create.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Examples that were not used for training: {SOURCES}. "
            "Default: the evaluation data of the run.",
            show_default=False,
        ),
    ] = None,
    evaluation: Annotated[
        str | None,
        typer.Option(
            "--eval",
            help="Examples to evaluate on. Default: the last fifth of --data (for flights: the "
            "last days of each month), which is then not used for fitting.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="isotonic: any increasing function, for tens of thousands of examples. "
            "platt: a sigmoid, for a few hundred examples."
        ),
    ] = "isotonic",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run in --out.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Fits a calibration on held-out data and writes a new run whose model includes it.

    The folder contains the files of a training run. Its report shows the reliability of the
    predictions before and after the calibration.
    """
    from twml_ops.cli.runs.calibrate import calibrate_run

    calibrate_run(run, data, evaluation, method, out, overwrite)
