"""Ensembles from one run beside single runs and an ensemble of independent runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.published.task import (
    L2,
    READ_BATCH_SIZE,
    TUNING_SEED,
    Done,
    Measured,
    Metrics,
    Settings,
    Task,
    best_trial,
    entropy_on,
    fit,
    make,
    missing_trials,
    normalized_entropy,
    predict,
    regularized,
)
from twml_ops import models, optimizers
from twml_ops.research import SnapshotEnsemble
from twml_ops.research.snapshot_ensemble import Combination, Schedule
from twml_ops.training.callbacks import WeightAveraging

CLAIM = (
    "Huang et al. 2017: the ensemble of the snapshots of one run has a lower loss than one run of "
    "equal compute. Directed perturbation: an inverted U, too little and too much diversity hurt."
)
DATA = ("mixed", "criteo", "flights")
MODEL = "deepfm"
SINGLE, COSINE = "single run", "single run, learning rate along one half cosine"
OPTIONS: dict[str, Any] = {}
RATE, SNAPSHOTS, RUNS = 0.002, 5, 3
SCHEDULES: tuple[Schedule, ...] = ("cyclic", "constant")
SIZES = (0.0, 0.01, 0.03, 0.1, 0.3)
COMBINATIONS: tuple[Combination, ...] = ("mean_probability", "mean_logit", "weighted", "greedy")

COMPARISONS = tuple(
    (f"{schedule}, perturbation {size:g}, weighted", SINGLE, "entropy")
    for schedule, size in itertools.product(SCHEDULES, SIZES)
)


def tune(task: Task, settings: Settings, done: Done) -> Measured:
    """Trains the single run with each strength of regularization.

    Args:
        task: the data.
        settings: of every training.
        done: trials that are measured.

    Yields:
        Trials, and their `l2` and `lowest` normalized entropy on the validation part.
    """
    for name, l2 in missing_trials(SINGLE, L2, done):
        model = _run(task, l2, TUNING_SEED, settings)
        lowest = entropy_on(model, task, task.validation, models.get(MODEL))
        yield name, {"lowest": lowest, "l2": l2}


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Trains a single run, one with averaged weights, independent runs, and runs with snapshots.

    Args:
        task: the data.
        seed: the seed of the weights and the order.
        settings: of every training.
        done: trials, of which the best gives the strength of regularization of all runs, and
            contenders that are measured.

    Yields:
        The contender, and its `entropy` on the test part; of snapshots also the `deviation` of the
        members there.
    """
    build, l2 = models.get(MODEL), best_trial(done, SINGLE)["l2"]
    test = task.batches(task.test, build, READ_BATCH_SIZE)

    def run(callbacks: Sequence[Any] = (), number: int = 0) -> Any:
        return _run(task, l2, seed + 1000 * number, settings, callbacks)

    def entropy(model: Any) -> Metrics:
        return {"entropy": entropy_on(model, task, task.test, build)}

    independent = f"{RUNS} independent runs, {RUNS} × the compute"
    if SINGLE not in done or independent not in done:
        outputs = [predict(run(number=i), test) for i in range(RUNS)]
        labels, mean = outputs[0][0], np.mean([p for _, p in outputs], axis=0)
        yield SINGLE, {"entropy": normalized_entropy(*outputs[0])}
        yield independent, {"entropy": normalized_entropy(labels, mean)}
    steps = -(-task.train.num_examples() // settings.batch_size)
    if COSINE not in done:
        rate = tf.keras.optimizers.schedules.CosineDecay(RATE, steps * settings.epochs)
        yield COSINE, entropy(_run(task, l2, seed, settings, rate=rate))
    if "late checkpoints averaged" not in done:
        yield "late checkpoints averaged", entropy(run([WeightAveraging(steps)]))
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


def _run(
    task: Task,
    l2: float,
    seed: int,
    settings: Settings,
    callbacks: Sequence[Any] = (),
    rate: Any = RATE,
) -> tf.keras.Model:
    build = models.get(MODEL)
    model = make(build, task, regularized(OPTIONS, l2), seed)
    fit(model, task, build, optimizers.LazyAdam(rate), settings, seed, callbacks)
    return model
