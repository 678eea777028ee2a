"""`twml-ops explain`: what each feature of a finished run contributes, and how it has moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import SOURCES, Debug, Run


def explain(
    run: Run,
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Examples: {SOURCES}. Default: those that the run was evaluated on.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Examples to compare --data with, say older ones.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Report to write; default: the run's own.", show_default=False),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Examples whose features are shuffled to see their worth.")
    ] = 8192,
    top: Annotated[int, typer.Option(min=1, help="Rows of the printed table.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Shows what each feature contributes, how often it is missing, and how it has drifted.

    Prints a table and adds a section with pictures to the report, in place of an earlier one.
    """
    from rich.markup import escape

    from twml_ops.cli.render import run_summary
    from twml_ops.cli.runs import explain as explaining
    from twml_ops.cli.runs.folder import REPORT_FILE, finite

    explanation = explaining.explain_run(run, data, against, rows)
    page = run / REPORT_FILE
    explaining.write(explanation, page, out or page)
    if as_json:
        print(json.dumps(finite(explaining.as_json(explanation)), indent=2))
        return
    console = run_summary.console()
    title = f"[bold]{escape(str(run))}[/] on {escape(explanation.data)}"
    if explanation.against is not None:
        title += f", against {escape(explanation.against)}"
    console.print(title, soft_wrap=True)
    explaining.show(console, explanation, top)
    console.print(f"[dim]with pictures in[/] [bold]{escape(str(out or page))}[/]")
