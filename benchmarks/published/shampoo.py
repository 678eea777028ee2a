"""Shampoo beside diagonal optimizers of the dense weights; all train the tables alike."""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.published.task import (
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
)
from twml_ops import models, optimizers, research

CLAIM = (
    "Shi et al. 2023: fewer steps than the tuned diagonal optimizer to its loss, at most 10 % more "
    "time for a step; the state is divided over the replicas."
)
DATA = ("mixed", "criteo", "flights")
MODEL = "dlrm"
OPTIONS = {"hidden": (256, 128), "bottom": (128,), "l2": 0.0, "linear_l2": 0.0}
FREQUENCY, BLOCK = 50, 128
POINTS, CURVE_BATCHES = 20, 10
"""Points of a curve, and batches of the validation part of which each is."""
RATES = (0.001, 0.003, 0.01, 0.03)
DIAGONAL: dict[str, Callable[[float], Any]] = {
    "Adam": optimizers.LazyAdam,
    "Adagrad": lambda rate: optimizers.Adagrad(30 * rate),  # its rates are larger
}


def shampoo(rate: float, frequency: int = FREQUENCY) -> Any:
    """The optimizer of the dense weights that is compared."""
    return research.Shampoo(
        rate,
        precondition_frequency=frequency,
        start_preconditioning_step=frequency,
        max_preconditioner_dim=BLOCK,
        epsilon=1e-4,
    )


CONTENDERS = {**DIAGONAL, "Shampoo": shampoo}
COMPARISONS = tuple(("Shampoo", other, "entropy") for other in DIAGONAL)


def composite(dense: Any) -> Any:
    """An optimizer with the same rule for the tables of every contender."""
    return optimizers.CompositeOptimizer(dense, {"embedding|linear": optimizers.LazyAdam(0.008)})


class Curve(tf.keras.callbacks.Callback):
    """The normalized entropy on the validation part every few steps."""

    def __init__(self, task: Task, build: Any, every: int) -> None:
        super().__init__()
        self._task, self._build, self._every = task, build, every
        self.entropies: list[float] = []
        self._step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Evaluates if it is due."""
        del batch, logs
        self._step += 1
        if self._step % self._every == 0:
            batches = self._task.batches(self._task.validation, self._build, READ_BATCH_SIZE)
            outputs = predict(self.model, batches.take(CURVE_BATCHES))
            self.entropies.append(normalized_entropy(*outputs))


def tune(task: Task, settings: Settings, done: Done) -> Measured:
    """Trains with every rate of every contender.

    Args:
        task: the data.
        settings: of every training.
        done: trials that are measured.

    Yields:
        Trials, and their `rate` and the `lowest` point of their curve.
    """
    for contender in CONTENDERS:
        for name, rate in missing_trials(contender, RATES, done):
            found = _train(contender, task, rate, TUNING_SEED, settings)
            yield name, {"rate": rate, "lowest": found["lowest"]}


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Trains every contender with the rate of its best trial.

    Args:
        task: the data.
        seed: the seed of the weights and the order.
        settings: of every training.
        done: trials, and contenders that are measured.

    Yields:
        The contender, and its `entropy` on the test part, its `rate`, its `curve`, the entropy on
        the validation part by step, the `lowest` point of it, and the `steps` until the lowest one
        of the best diagonal contender is reached (NaN: never). For Shampoo also `step_time`, the
        ratio to that contender, and `memory`, the share of its state that the fuller one of two
        replicas has.
    """
    if all(contender in done for contender in CONTENDERS):
        return
    rates = {contender: best_trial(done, contender)["rate"] for contender in CONTENDERS}
    found = {c: _train(c, task, rate, seed, settings) for c, rate in rates.items()}
    best = min(DIAGONAL, key=lambda c: float(found[c]["lowest"]))
    for contender, metrics in found.items():
        metrics["steps"] = _steps_to(metrics["curve"], found[best]["lowest"], settings, task)
        if contender == "Shampoo":
            optimizers_of = DIAGONAL[best](rates[best]), shampoo(rates[contender])
            metrics["step_time"] = step_time_ratio(task, *optimizers_of, settings.batch_size)
            metrics["memory"] = memory_of_a_replica()
        yield contender, metrics


def _train(contender: str, task: Task, rate: float, seed: int, settings: Settings) -> Metrics:
    build = models.get(MODEL)
    model = make(build, task, OPTIONS, seed)
    curve = Curve(task, build, _every(settings, task))
    optimizer = composite(CONTENDERS[contender](rate))
    fit(model, task, build, optimizer, settings, seed, [curve])
    return {
        "rate": rate,
        "entropy": entropy_on(model, task, task.test, build),
        "lowest": min(curve.entropies),
        "curve": curve.entropies,
    }


def _every(settings: Settings, task: Task) -> int:
    """The number of steps between two points of a curve."""
    steps = -(-task.train.num_examples() // settings.batch_size) * settings.epochs
    return max(1, steps // POINTS)


def _steps_to(curve: Sequence[float], target: float, settings: Settings, task: Task) -> float:
    """The first step of a curve at which it is at most `target`; NaN: it never is."""
    every = _every(settings, task)
    return next((float(every * (i + 1)) for i, y in enumerate(curve) if y <= target), math.nan)


def step_time_ratio(
    task: Task, diagonal: Any, other: Any, batch_size: int, repetitions: int = 6
) -> float:
    """The CPU time of `FREQUENCY` steps with `other`, divided by that with `diagonal`.

    The median of pairs of measurements, one after the other. Other processes hardly change it.
    """
    build = models.get(MODEL)
    batch = next(iter(task.batches(task.train, build, min(batch_size, READ_BATCH_SIZE))))
    timed = []
    for optimizer in (diagonal, other):
        model = make(build, task, OPTIONS, 0)
        model.compile(composite(optimizer), "binary_crossentropy", jit_compile=False)
        model.train_on_batch(*batch)
        timed.append(model)
    ratios = []
    for _ in range(repetitions):
        seconds = []
        for model in timed:
            start = time.process_time()
            for _ in range(FREQUENCY):
                model.train_on_batch(*batch)
            seconds.append(time.process_time() - start)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def memory_of_a_replica() -> float:
    """The share of the state that the fuller one of two replicas has, in a process of its own."""
    program = "from benchmarks.published.shampoo import print_memory; print_memory()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def print_memory() -> None:
    """Builds Shampoo on two replicas for weights of the sizes of the benchmark's model."""
    from twml_ops import distribute

    strategy = distribute.mirrored_strategy(2)
    widths = (780, 256, 128, 1)  # 39 fields and the vector of the numbers: dot products
    with strategy.scope():
        shapes = [shape for a, b in itertools.pairwise(widths) for shape in ((a, b), (b,))]
        weights = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        optimizer = shampoo(0.001)
        optimizer.build(weights)
    found: dict[str, int] = {}
    variables = optimizer.variables
    for variable in variables() if callable(variables) else variables:
        state = getattr(variable, "_value", variable)
        if len(state.shape) and not hasattr(state, "values"):
            found[state.device] = found.get(state.device, 0) + int(np.prod(state.shape))
    print(max(found.values()) / sum(found.values()))
