"""Measures published systems beside the standard ones: docs/published.md.

    python -m benchmarks.published                                   # what is not yet measured
    python -m benchmarks.published --part dhen --data mixed --seeds 10
    python -m benchmarks.published --part shampoo --data criteo --seeds 5

Each training is recorded when it is complete, so an interrupted command resumes. All figures are on
test data, which decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from benchmarks import machine, tables
from benchmarks.published import architecture, dhen, hashes, page, shampoo, snapshots, towers
from benchmarks.published.task import (
    TRIAL,
    TUNING_SEED,
    Done,
    Measured,
    Metrics,
    Settings,
    Task,
    open_task,
)
from benchmarks.quality import data_sets
from benchmarks.quality.results import Results

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = tables.results_file(DOCS, "published.json")
PARTS: dict[str, Any] = {
    "dhen": dhen,
    "shampoo": shampoo,
    "snapshots": snapshots,
    "search": architecture,
    "towers": towers,
    **{f"hash-{ratio}": hashes.Hashes(ratio) for ratio in (4, 16, 64)},
}
CHOSEN = list(PARTS)


def main(
    part: Annotated[list[str], typer.Option(help=f"{', '.join(CHOSEN)}. Repeatable.")] = CHOSEN,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="mixed or clusters (planted), criteo, flights or NAME=SOURCE. Repeatable. "
            "Default: the data sets of the part."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ...")] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 4,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of a step.")] = 256,
    rows: Annotated[
        int | None, typer.Option(min=10, help="Rows of planted data; training rows of others.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="For TensorFlow.")] = 2,
    folder: Annotated[
        Path, typer.Option(help="Folder of the files of criteo.")
    ] = data_sets.DEFAULT_FOLDER,
    results: Annotated[Path, typer.Option(help="JSON file of the results.")] = RESULTS,
) -> None:
    """Measures what the results do not have yet, and writes the tables to the page."""
    machine.limit_threads(threads)
    console, found = Console(), Results(results)
    command, settings = "python -m benchmarks.published", Settings(epochs, batch_size)
    for name in part:
        for data_set in data or PARTS[name].DATA:
            title = data_set.partition("=")[0]
            for seed in [*tuning_seeds(PARTS[name]), *range(seeds)]:
                key = f"{name} on {title}"
                done = known(found.content["runs"].get(key, {}), seed)
                task = open_task(data_set, seed, rows, folder)
                for contender, metrics in measured(PARTS[name], task, seed, settings, done):
                    found.content["machine"] = machine.describe(command)
                    found.content["data"][key] = {**_describe(task), **settings._asdict()}
                    found.add(key, contender, seed, metrics)
                    console.print(f"{key}, seed {seed}: {contender}", highlight=False)
    own = results == RESULTS
    document = DOCS / "published.md" if own else results.with_suffix(".md")
    claims = {name: module.CLAIM for name, module in PARTS.items()}
    comparisons = {n: getattr(module, "COMPARISONS", ()) for n, module in PARTS.items()}
    text = page.page(found.content, claims, comparisons)
    tables.insert(document, "tables", text, command)


def tuning_seeds(part: Any) -> list[int]:
    """The seed of the trials of a part, if it has trials."""
    return [TUNING_SEED] if hasattr(part, "tune") else []


def known(runs: Mapping[str, Any], seed: int) -> dict[str, Metrics]:
    """The metrics of the contenders with a seed, and the metrics of the trials."""
    return {
        contender: by_seed[key]
        for contender, by_seed in runs.items()
        for key in (str(TUNING_SEED if TRIAL in contender else seed),)
        if key in by_seed
    }


def measured(part: Any, task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """The trials of a part, or its contenders with a seed."""
    if seed == TUNING_SEED:
        return cast(Measured, part.tune(task, settings, done))
    return cast(Measured, part.measure(task, seed, settings, done))


def _describe(task: Task) -> dict[str, Any]:
    parts = {"train": task.train, "validation": task.validation, "test": task.test}
    return {name: part.num_examples() for name, part in parts.items()}


if __name__ == "__main__":
    typer.run(main)
