"""`twml-ops explain`: analyses the features of a finished run, and adds them to its report."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console

from twml_ops import models
from twml_ops.analysis.explanation import Explanation, explain_features, frequent_sparse_ids
from twml_ops.analysis.feature_groups import take_sample
from twml_ops.analysis.leakage import leaking_features
from twml_ops.analysis.profiles import Profile
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import feature_report
from twml_ops.cli.render.json_output import print_json
from twml_ops.cli.render.progress import Bar
from twml_ops.cli.render.terminal import make_console, make_error_console
from twml_ops.cli.runs.folder import REPORT_FILE, new_file, read_run, write_result
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import Source, original_errors


def explain_run(
    run: Path,
    data: str | None,
    against: str | None,
    out: Path | None,
    rows: int,
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
        rows: size of the sample for the permutation importance.
        top: number of rows of the printed table.
        as_json: print JSON instead of a table.
        overwrite: replace the file `out` if it exists.

    Raises:
        UserError: the folder is not a finished run, `out` cannot be written, the report of the run
            cannot be read, or the data have no examples.
        ValueError: data cannot be read.
    """
    report = run / REPORT_FILE
    read_run(run)  # fails if there is no run, before the report in it is named
    with new_file(out or report, overwrite or out is None) as file:
        explanation = explain(TrainedRun(run), data, against, rows)
        html = with_section(report, explanation)
        write_result(file, out or report, lambda path: _write_text(path, html))
    if as_json:
        print_json(feature_report.to_json(explanation))
    else:
        feature_report.print_explanation(make_console(), run, explanation, top, out or report)


def explain(trained: TrainedRun, data: str | None, against: str | None, rows: int) -> Explanation:
    """Analyses the features of a finished run.

    Args:
        trained: the run.
        data: SOURCE to analyse; None: the evaluation data of the run.
        against: SOURCE to compare it with, or None.
        rows: size of the sample for the permutation importance.

    Raises:
        UserError: the data have no examples.
        ValueError: data cannot be read.
    """
    source = trained.source(data)
    other = None if against is None else trained.source(against)
    console = make_error_console()
    sources = [source] if other is None else [source, other]
    with original_errors(*sources):
        layout = models.layout_of(trained.model)
        sample = take_sample(source, rows, layout, trained.facts["seed"])
        if sample is None:
            raise UserError(f"{source.name}: has no examples")
        ids = frequent_sparse_ids(sample, trained.schema)
        profiles = [_profile(console, s, trained, ids) for s in sources]
        now, before = profiles[0], profiles[-1]
        leaks = leaking_features(source.blocks(), trained.schema)
        with console.status("computing permutation importance"):
            found = explain_features(
                trained.model, sample, trained.schema, now, before if other else None
            )
    return Explanation(
        found,
        source.name,
        other.name if other else None,
        (now.examples, before.examples if other else 0),
        len(sample.labels),
        leaks,
    )


def with_section(report: Path, explanation: Explanation) -> str:
    """The content of a report with a section about the features, in place of an existing one.

    Args:
        report: report to read.
        explanation: content of the section.

    Raises:
        UserError: `report` cannot be read or is not a report.
    """
    try:
        html = report.read_text(encoding="utf-8")
    except OSError as e:
        raise UserError(f"{report}: cannot be read: {e.strerror}") from e
    start, end = "<!-- twml-ops explain -->", "<!-- /twml-ops explain -->"
    html = re.sub(f"{start}.*?{end}\n?", "", html, flags=re.DOTALL)
    head, closing, tail = html.rpartition("</main>")
    if not closing:
        raise UserError(f"{report}: is not a report of twml-ops")
    section = f"{start}\n{feature_report.render(explanation)}\n{end}\n"
    return head + section + closing + tail


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _profile(console: Console, source: Source, trained: TrainedRun, ids: list[int]) -> Profile:
    profile = Profile(trained.schema, ids)
    with Bar(console, source.name, None) as bar:
        for block in source.blocks():
            profile.add(block)
            bar.add(len(block))
    return profile
