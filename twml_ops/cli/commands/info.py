"""`twml-ops info`: shows the installation or a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def info(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a finished run.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Shows a finished run, or the installation if no run is given.

    The installation lists the names of models, optimizers and sources that options accept.
    """
    from twml_ops.cli.runs.info import show_info

    show_info(run)
