"""`twml-ops explain`: importance and drift of the features of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import SOURCES, Debug, Overwrite, Run

if TYPE_CHECKING:
    from rich.console import Console

    from twml_ops.analysis.explanation import Explanation


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
        int | None,
        typer.Option(
            min=1,
            help="Size of the sample for permutation importance. Default: 8192; with more than "
            "362 features fewer, but at least 128.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of the printed table.")] = 40,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Shows the importance, the coverage and the drift of each feature of a finished run.

    Prints a table, and adds a section with plots to the report or replaces the existing one.
    """
    explain_run(run, data, against, out, rows, top, as_json, overwrite)


def explain_run(
    run: Path,
    data: str | None,
    against: str | None,
    out: Path | None,
    rows: int | None,
    top: int,
    as_json: bool,
    overwrite: bool = False,
) -> None:
    """Prints an analysis of the features of a finished run, and adds it to the report.

    Args:
        run: folder of the run.
        data: SOURCE to analyse; None: the evaluation data of the run.
        against: SOURCE to compare it with, or None.
        out: report to write; None: the report of the run.
        rows: size of the sample for the permutation importance; None: by the number of features.
        top: number of rows of the printed table.
        as_json: print JSON instead of a table.
        overwrite: replace the file `out` if it exists.

    Raises:
        UserError: the folder is not a finished run, `out` cannot be written, the report of the run
            cannot be read, or the data have no examples.
        ValueError: data cannot be read.
    """
    from twml_ops.cli.console import make_console, make_error_console, print_json
    from twml_ops.cli.reporter import ConsoleReporter
    from twml_ops.report.features import explanation_to_json, with_section
    from twml_ops.training.evaluation import explain_features_of
    from twml_ops.training.run_folder import REPORT_FILE, new_file, read_run, write_result
    from twml_ops.training.trained_run import TrainedRun

    report = run / REPORT_FILE
    read_run(run)  # fails if there is no run, before the report in it is named
    with new_file(out or report, overwrite or out is None) as file:
        reporter = ConsoleReporter(make_error_console())
        explanation = explain_features_of(TrainedRun(run), data, against, rows, reporter)
        html = with_section(report, explanation)
        write_result(file, out or report, lambda path: _write_text(path, html))
    if as_json:
        print_json(explanation_to_json(explanation))
    else:
        print_explanation(make_console(), run, explanation, top, out or report)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


_LEVELS = {"strong": "bold red", "moderate": "yellow", "none": "green", "": "dim"}


def print_explanation(
    console: Console, run: Path, explanation: Explanation, top: int, report: Path
) -> None:
    """Prints the table of the features of a run and where the report is.

    Args:
        console: where to print.
        run: folder of the run.
        explanation: the features.
        top: number of rows of the table.
        report: the report that has the plots.
    """
    from rich.markup import escape

    from twml_ops.cli.reporter import ConsoleReporter

    title = f"[bold]{escape(str(run))}[/] on {escape(explanation.data)}"
    if explanation.against is not None:
        title += f", against {escape(explanation.against)}"
    console.print(title, soft_wrap=True)
    print_table(console, explanation, top)
    ConsoleReporter(console).leaks(explanation.leaks, explanation.data)
    console.print(f"[dim]the plots are in[/] [bold]{escape(str(report))}[/]")


def print_table(console: Console, explanation: Explanation, top: int) -> None:
    """Prints a table with one feature per row, in descending order of importance.

    Args:
        console: where to print.
        explanation: the features.
        top: maximum number of rows.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from twml_ops.report.features import _decimal, _percent, _shares, level

    compared = explanation.against is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("feature", style="bold", overflow="fold")
    table.add_column("group", style="dim")
    table.add_column("importance", justify="right", style="cyan")
    table.add_column("", no_wrap=True)
    table.add_column("weights", justify="right")
    table.add_column("coverage", justify="right")
    table.add_column("missing", justify="right")
    if compared:
        table.add_column("before", justify="right", style="dim")
        table.add_column("PSI", justify="right")
    most = max([f.importance for f in explanation.features], default=0)
    for f in explanation.features[:top]:
        cells = [
            escape(f.name),
            f.group,
            f"{f.importance:.5f}",
            _bar(f.importance, most),
            *_shares(f),
        ]
        if compared:
            style = _LEVELS[level(f.drift)]
            cells += [_percent(f.coverage_before), f"[{style}]{_decimal(f.drift.psi)}[/]"]
        table.add_row(*cells)
    console.print(table)
    rest = len(explanation.features) - top
    if rest > 0:
        console.print(f"[dim]and {rest} more; --top sets how many are shown[/]")


def _bar(value: float, most: float) -> str:
    return "█" * round(12 * value / most) if value > 0 and most > 0 else ""
