"""Compares `twml-ops train` with other libraries on held-out data: docs/quality.md.

    python -m benchmarks.quality                             # everything that is not yet measured
    python -m benchmarks.quality --data a9a --contender train --contender lightgbm
    python -m benchmarks.quality --contender train --again   # after a change of `train`
    python -m benchmarks.quality --data "mine=csv:mine.csv" --results out/mine.json

A contender is the name of a peer, or `train` with options. Peers are tuned once for a data set, on
a validation part of its training data (that of `Source.split`). They are then trained on all
training data with each seed. The test data is used for the metrics only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks import machine, tables
from benchmarks.quality import data_sets, examples, page, peers, train_command
from benchmarks.quality.cpu_time import cpu_seconds
from benchmarks.quality.data_sets import DataSet
from benchmarks.quality.examples import Examples
from benchmarks.quality.peer import Peer
from benchmarks.quality.results import Results

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = tables.results_file(DOCS, "quality.json")
DATA = ["criteo", "flights", "a9a"]
CONTENDERS = ["train", "train --model auto", "train --ensemble 5", *peers.names()]
LIBRARIES = ("tensorflow-cpu", "keras", "scikit-learn", "lightgbm", "catboost")


def main(
    data: Annotated[
        list[str],
        typer.Option(
            help="criteo, criteo_random, flights, a9a, access, films, a table of "
            "benchmarks/quality/r_data_sets.py or NAME=SOURCE[,EVALUATION]. Repeatable."
        ),
    ] = DATA,
    contender: Annotated[
        list[str],
        typer.Option(help="Name of a peer, or `train` with options. Repeatable."),
    ] = CONTENDERS,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each contender.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="For every contender.")] = 2,
    folder: Annotated[
        Path, typer.Option(help="Folder of the files of criteo and a9a.")
    ] = data_sets.DEFAULT_FOLDER,
    results: Annotated[Path, typer.Option(help="JSON file of the results.")] = RESULTS,
    again: Annotated[bool, typer.Option("--again", help="Measure these contenders again.")] = False,
) -> None:
    """Measures what the results do not have yet, and writes the page beside them."""
    machine.limit_threads(threads)
    console, found = Console(), Results(results)
    found.content["machine"] = machine.describe("python -m benchmarks.quality", LIBRARIES)
    for text in data:
        session = Session(data_sets.get(text, folder), found, seeds, threads, console)
        for name in contender:
            session.measure(name, again)
    found.write()
    own = results == RESULTS
    document = DOCS / "quality.md" if own else results.with_suffix(".md")
    by = "python -m benchmarks.quality"
    tables.insert(document, "summary", page.summary(found.content), by)
    tables.insert(document, "tables", page.page(found.content), by)
    console.print(page.page(found.content), markup=False, highlight=False, soft_wrap=True)


class Session:
    """The measurements of one data set.

    Args:
        data: the data set.
        results: where they are recorded.
        seeds: runs of each contender, with the seeds 0, 1, ...
        threads: of every contender.
        console: for one line for each run.
    """

    def __init__(
        self, data: DataSet, results: Results, seeds: int, threads: int, console: Console
    ) -> None:
        self._data, self._results, self._console = data, results, console
        self._seeds, self._threads = seeds, threads
        self._train, self._test = data.open()
        self._arrays: tuple[Examples, Examples] | None = None

    def measure(self, contender: str, again: bool = False) -> None:
        """Measures the runs that are missing.

        Args:
            contender: name of a peer, or `train` with options.
            again: measure the others again as well.
        """
        command = train_command.is_command(contender)
        try:
            peer = None if command else peers.create(contender, self._threads)
        except ImportError as e:
            return self._print(contender, f"not installed: {e}")
        if command and not train_command.is_available(contender):
            return self._print(contender, "there are no such options")
        name = contender if peer is None else peer.name
        if again:
            self._results.forget(self._data.name, name)
        for seed in range(self._seeds):
            if self._results.has(self._data.name, name, seed):
                continue
            if peer is None:
                metrics = train_command.run(contender, self._data, seed, self._threads)
            else:
                metrics = self._run_peer(peer, seed)
            self._describe()
            self._results.add(self._data.name, name, seed, metrics)
            shown = ", ".join(f"{k} {v:.5g}" for k, v in metrics.items())
            self._print(name, f"seed {seed}: {shown}")

    def _run_peer(self, peer: Peer, seed: int) -> dict[str, Any]:
        train, test = self._examples()
        tuned = self._results.tuned(self._data.name, peer.name)
        if tuned is None:
            fit, validation = (examples.read(part) for part in self._train.split())
            tuned = peer.tune(fit, validation)._asdict()
            self._results.add_tuned(self._data.name, peer.name, tuned)
            for tried in tuned["tried"]:
                self._print(peer.name, f"validation: {tried}")
        if not peer.seeded and seed:
            runs: dict[str, Any] = self._results.content["runs"][self._data.name][peer.name]["0"]
            return runs
        start = cpu_seconds()
        settings = tuned["settings"]
        predictions = peer.run(settings, train, test, seed=seed, stop_early=False).predictions
        seconds = cpu_seconds() - start
        return {**metrics_of(test.labels, predictions), "cpu_seconds": seconds}

    def _examples(self) -> tuple[Examples, Examples]:
        if self._arrays is None:
            self._arrays = examples.read(self._train), examples.read(self._test)
        return self._arrays

    def _describe(self) -> None:
        about = self._results.content["data"]
        if self._data.name not in about:
            train, test = self._examples()
            about[self._data.name] = {
                "description": self._data.description,
                "train": len(train),
                "test": len(test),
                "base_rate": float(test.labels.mean()),
            }

    def _print(self, contender: str, text: str) -> None:
        line = f"{self._data.name}, {contender}: {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def metrics_of(labels: examples.Array, predictions: examples.Array) -> dict[str, float]:
    """The metrics of `twml-ops train` for the predictions of a peer."""
    from twml_ops.analysis import scoring

    scores = scoring.Scores(labels, np.asarray(predictions, np.float32), 0.0)
    metrics = scoring.metrics(scores)
    return {name: metrics[name] for name in train_command.METRICS}


if __name__ == "__main__":
    typer.run(main)
