"""`twml-ops explain`: importance and drift of the features of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, Debug, Overwrite, Run


def explain(
    run: Run,
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Examples: {SOURCES}. Default: the evaluation data of the run.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Examples to compare --data with, such as older data.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Report to write. Default: the report of the run.", show_default=False),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Size of the sample for permutation importance.")
    ] = 8192,
    top: Annotated[int, typer.Option(min=1, help="Rows of the printed table.")] = 40,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Shows the importance, the coverage and the drift of each feature of a finished run.

    Prints a table, and adds a section with plots to the report or replaces the existing one.
    """
    from twml_ops.cli.runs.explain import explain_run

    explain_run(run, data, against, out, rows, top, as_json, overwrite)
