"""`twml-ops info`: shows the installation, a model or a finished run."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def info(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|MODEL",
            help="Folder of a finished run, name of a model, or FILE.py:FUNCTION.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Shows a finished run, the options of a model, or the installation.

    The options of a model are the ones that `twml-ops train --set` takes, with their defaults. The
    installation lists the names of models, optimizers and sources that options accept.
    """
    from twml_ops.cli.runs.info import show_info

    show_info(subject)
