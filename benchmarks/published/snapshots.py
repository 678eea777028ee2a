"""Ensembles from one run beside single runs and an ensemble of independent runs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from benchmarks.published.task import (
    L2,
    READ_BATCH_SIZE,
    TRIAL,
    Done,
    Measured,
    Metrics,
    Settings,
    Task,
    entropy_on,
    fit,
    make,
    normalized_entropy,
    predict,
    regularized,
)
from twml_ops import models, optimizers
from twml_ops.callbacks import SnapshotEnsemble
from twml_ops.callbacks.snapshot_ensemble import Combination, Schedule
from twml_ops.cli.runs.callbacks import WeightAveraging

CLAIM = (
    "Huang et al. 2017: the ensemble of the snapshots of one run has a lower loss than one run of "
    "equal compute. Directed perturbation: an inverted U, too little and too much diversity hurt."
)
DATA = ("mixed", "criteo", "flights")
MODEL = "deepfm"
OPTIONS: dict[str, Any] = {}
RATE, SNAPSHOTS, RUNS = 0.002, 5, 3
SCHEDULES: tuple[Schedule, ...] = ("cyclic", "constant")
SIZES = (0.0, 0.01, 0.03, 0.1, 0.3)
COMBINATIONS: tuple[Combination, ...] = ("mean_probability", "mean_logit", "weighted", "greedy")


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Trains a single run, one with averaged weights, independent runs, and runs with snapshots.

    Args:
        task: the data.
        seed: of the weights and the order.
        settings: of every training.
        done: contenders that are measured.

    Yields:
        Trials of the single run with each strength of regularization, of which the validation part
        chooses the one for all. Then the contender, and its `entropy` on the test part; of
        snapshots also the `deviation` of the members there.
    """
    build = models.get(MODEL)
    test = task.batches(task.test, build, READ_BATCH_SIZE)

    def run(callbacks: Any = (), number: int = 0) -> Any:
        own_seed = seed + 1000 * number
        model = make(build, task, regularized(OPTIONS, l2), own_seed)
        fit(model, task, build, optimizers.LazyAdam(RATE), settings, own_seed, callbacks)
        return model

    def entropy(model: Any) -> Metrics:
        return {"entropy": entropy_on(model, task, task.test, build)}

    tried = []
    for l2 in L2:
        trial = f"single run{TRIAL}{l2:g}"
        found = done.get(trial)
        if found is None:
            model = run()
            lowest = entropy_on(model, task, task.validation, build)
            found = {**entropy(model), "lowest": lowest, "l2": l2}
            yield trial, found
        tried.append(found)
    chosen = min(tried, key=lambda each: float(each["lowest"]))
    l2 = chosen["l2"]
    if "single run" not in done:
        yield "single run", chosen
    if "late checkpoints averaged" not in done:
        steps = -(-task.train.num_examples() // settings.batch_size)
        yield "late checkpoints averaged", entropy(run([WeightAveraging(steps)]))
    independent = f"{RUNS} independent runs, {RUNS} × the compute"
    if independent not in done:
        outputs = [predict(run(number=i), test) for i in range(RUNS)]
        mean = np.mean([p for _, p in outputs], axis=0)
        yield independent, {"entropy": normalized_entropy(outputs[0][0], mean)}
    validation = task.batches(task.validation, build, READ_BATCH_SIZE)
    for schedule, size in itertools.product(SCHEDULES, SIZES):
        names = {c: f"{schedule}, perturbation {size:g}, {c}" for c in COMBINATIONS}
        if all(name in done for name in names.values()):
            continue
        snapshots = SnapshotEnsemble(SNAPSHOTS, schedule, size)
        run([snapshots])
        deviation = snapshots.diversity(test).deviation
        for combination, name in names.items():
            made = snapshots.ensemble(combination, validation)
            yield name, {**entropy(made), "deviation": deviation}
