"""`twml-ops calibrate`: a finished run with a calibration at its end."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, Debug, Run
from twml_ops.cli.runs.folder import new_folder


def calibrate(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to make.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Examples that the model was not trained on: {SOURCES}. "
            "Default: those that the run was evaluated on.",
            show_default=False,
        ),
    ] = None,
    evaluation: Annotated[
        str | None,
        typer.Option(
            "--eval",
            help="Examples to evaluate on; default: the last fifth of --data (of flights: the "
            "last days of each month), which is then not fitted on.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="isotonic: any rising curve, for tens of thousands of examples; "
            "platt: a sigmoid, for a few hundred."
        ),
    ] = "isotonic",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run in --out.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Fits a calibration on held-out data and leaves a new run whose model includes it.

    The folder has the files of train. Its report shows the reliability before and after.
    """
    with new_folder(out, overwrite) as folder:
        from twml_ops.cli.runs.calibrate import Settings, run_calibration

        command = shlex.join(["twml-ops", *sys.argv[1:]])
        run_calibration(Settings(run, data, evaluation, method, command), folder, out)
