"""Explaining a finished run: its data read, its features analysed, its report written anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.console import Console

from twml_ops.analysis.explanation import Explanation, explain_features, sparse_ids_of
from twml_ops.analysis.feature_masks import sample_of
from twml_ops.analysis.profiles import Profile
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import feature_report
from twml_ops.cli.render.progress import Bar
from twml_ops.cli.runs.folder import new_file
from twml_ops.cli.runs.train import LARGE_BATCH
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import Source, original_errors


def explain_run(run: Path, data: str | None, against: str | None, rows: int) -> Explanation:
    """Looks at the features of a finished run.

    Args:
        run: its folder.
        data: SOURCE to look at, or None: what the run was evaluated on.
        against: SOURCE to compare it with, or None.
        rows: size of the sample whose features are shuffled.

    Raises:
        UserError: the folder is no finished run, or data without examples.
        ValueError: data that cannot be read.
    """
    trained = TrainedRun(run)
    source = trained.source(data)
    other = None if against is None else trained.source(against)
    console = Console(stderr=True)
    sources = [source] if other is None else [source, other]
    with original_errors(*sources):
        shuffled = source.dataset(LARGE_BATCH, shuffle=True, seed=trained.facts["seed"])
        sample = sample_of(shuffled, rows)
        if sample is None:
            raise UserError(f"{source.name}: has no examples")
        features, labels = sample
        ids = sparse_ids_of(features, trained.schema)
        profiles = [_profile(console, s, trained, ids) for s in sources]
        now, before = profiles[0], profiles[-1]
        with console.status("asking what each feature is worth"):
            found = explain_features(
                trained.model, features, labels, trained.schema, now, before if other else None
            )
    return Explanation(
        found,
        source.name,
        other.name if other else None,
        (now.examples, before.examples if other else 0),
        len(labels),
        max(profile.undecided() for profile in profiles),
    )


def write(explanation: Explanation, page: Path, out: Path) -> None:
    """Puts the section about the features into a report, in place of an earlier one.

    Args:
        explanation: what to show.
        page: the report to take.
        out: the file to write, which may be `page`.

    Raises:
        UserError: `page` cannot be read, is no report, or `out` cannot be written.
    """
    try:
        html = page.read_text(encoding="utf-8")
    except OSError as e:
        raise UserError(f"{page}: cannot be read: {e.strerror}") from e
    start, end = "<!-- twml-ops explain -->", "<!-- /twml-ops explain -->"
    html = re.sub(f"{start}.*?{end}\n?", "", html, flags=re.DOTALL)
    head, closing, tail = html.rpartition("</main>")
    if not closing:
        raise UserError(f"{page}: is no report of twml-ops")
    section = f"{start}\n{feature_report.render(explanation)}\n{end}\n"
    with new_file(out) as file:
        file.write_text(head + section + closing + tail, encoding="utf-8")


def as_json(explanation: Explanation) -> dict[str, Any]:
    """What is printed by `--json`."""
    features = []
    for f in explanation.features:
        row = f._asdict()
        row.pop("histograms")
        drift = row.pop("drift")
        features.append({**row, "psi": drift.psi, "psi_by_chance": drift.chance})
    return {**explanation._asdict(), "features": features}


def _profile(console: Console, source: Source, trained: TrainedRun, ids: list[int]) -> Profile:
    profile = Profile(trained.schema, ids)
    with Bar(console, source.name, None) as bar:
        for block in source.blocks():
            profile.add(block)
            bar.add(len(block))
    return profile


def show(console: Console, explanation: Explanation, top: int) -> None:
    """Prints the table."""
    feature_report.print_table(console, explanation, top)
    if explanation.undecided > 0.001:
        console.print(
            f"[dim]{explanation.undecided:.1%} of the categories, rare ones in rows with much "
            "missing, could not be told to a column and count as missing[/]"
        )
