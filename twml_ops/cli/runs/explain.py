"""What each feature contributes, how often it is there, and how it has moved."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from twml_ops.analysis import scoring
from twml_ops.analysis.feature_entries import Entries, entries_of, sample_of
from twml_ops.analysis.permutation_importance import importance_of
from twml_ops.analysis.population_stability import BINS, CATEGORIES, Drift, population_stability
from twml_ops.analysis.profiles import Histogram, Profile
from twml_ops.analysis.weight_norms import weight_norms
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import feature_report
from twml_ops.cli.render.progress import Bar
from twml_ops.cli.runs.folder import new_file
from twml_ops.cli.runs.load import TrainedRun
from twml_ops.cli.runs.train import LARGE_BATCH
from twml_ops.data import Source, original_errors


class Feature(NamedTuple):
    """What is known of one feature.

    Attributes:
        name: of the feature; sparse ids are called `id 7`.
        group: continuous, categorical or sparse.
        worth: log loss added when it is shuffled over the rows of the sample.
        weight_norm: root mean square norm of the weights its entries read; NaN without entries.
        coverage: share of the examples that have it.
        missing: the other share; NaN for a sparse id, whose absence is no gap.
        before: coverage in the data it is compared with; NaN if there are none.
        drift: population stability index against them; NaN if there are none.
        histograms: (before, now) that the index is made of, if there are any.
    """

    name: str
    group: str
    worth: float
    weight_norm: float
    coverage: float
    missing: float
    before: float
    drift: Drift
    histograms: tuple[Histogram, Histogram] | None


class Explanation(NamedTuple):
    """The features of a run on some data.

    Attributes:
        features: the one worth most first.
        data: name of the data.
        against: name of the data they are compared with, or None.
        examples: of either.
        sample: how many examples were shuffled.
        undecided: share of categories whose column could not be told.
    """

    features: list[Feature]
    data: str
    against: str | None
    examples: tuple[int, int]
    sample: int
    undecided: float


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
        sample_features, labels = sample
        numbers = _numbers(entries_of(sample_features, trained.schema))
        ids = [number for group, number in numbers.values() if group == "sparse"]
        profiles = [_profile(console, s, trained, ids) for s in sources]
        now, before = profiles[0], profiles[-1]
        if other is not None:
            now.learn_columns(before)
            before.learn_columns(now)
        groups = entries_of(sample_features, trained.schema, now.known_columns())
        with console.status("asking what each feature is worth"):
            predict = scoring.predictor(trained.model)
            found = importance_of(predict, sample_features, labels, groups)
            worth = {w.name: w.loss for w in found}
            norms = weight_norms(trained.model, sample_features, groups)
    features = [
        _feature(name, *numbers[name], worth[name], norms[name], now, before if other else None)
        for name in worth
    ]
    return Explanation(
        features,
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


def _numbers(groups: list[Entries]) -> dict[str, tuple[str, int]]:
    """Group, and position in the schema or sparse id, of each feature by its name."""
    out = {}
    for group in groups:
        for position, name in enumerate(group.features):
            number = int(name.split()[1]) if group.group == "sparse" else position
            out[name] = (group.group, number)
    return out


def _profile(console: Console, source: Source, trained: TrainedRun, ids: list[int]) -> Profile:
    profile = Profile(trained.schema, ids)
    with Bar(console, source.name, None) as bar:
        for block in source.blocks():
            profile.add(block)
            bar.add(len(block))
    return profile


def _feature(
    name: str,
    group: str,
    number: int,
    worth: float,
    norm: float,
    now: Profile,
    before: Profile | None,
) -> Feature:
    share: Callable[[Profile], float] = lambda p: p.present(group, number) / max(p.examples, 1)  # noqa: E731
    coverage, drift, histograms = share(now), Drift(np.nan, np.nan), None
    if before is not None:
        bins = CATEGORIES if group == "categorical" else BINS
        histograms = (
            before.histogram(group, number, before, bins),
            now.histogram(group, number, before, bins),
        )
        drift = population_stability(histograms[0].counts, histograms[1].counts)
    return Feature(
        name,
        group,
        worth,
        norm,
        coverage,
        np.nan if group == "sparse" else 1 - coverage,
        np.nan if before is None else share(before),
        drift,
        histograms,
    )


def show(console: Console, explanation: Explanation, top: int) -> None:
    """Prints the table."""
    feature_report.print_table(console, explanation, top)
    if explanation.undecided > 0.001:
        console.print(
            f"[dim]{explanation.undecided:.1%} of the categories, rare ones in rows with much "
            "missing, could not be told to a column and count as missing[/]"
        )
