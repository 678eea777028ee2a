"""DHEN beside its modules alone and the models of the package."""

from __future__ import annotations

from typing import Any

from benchmarks.published.task import (
    L2,
    PLANTED,
    TUNING_SEED,
    BestEpoch,
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
    regularized,
)
from twml_ops import models, optimizers, research

CLAIM = (
    "Zhang et al. 2022: 0.27 % less normalized entropy than the best baseline, 1.2 × its training "
    "throughput."
)
DATA = ("mixed", "criteo", "flights")
ALL = tuple(research.DHEN_MODULES)
_VECTORS = {"trees": False, "statistics": False, "crosses": ()}
DHEN: dict[str, tuple[str, dict[str, Any]]] = {
    "DHEN, all modules": ("dhen", {"modules": ALL}),
    **{f"DHEN, {name} alone": ("dhen", {"modules": (name,)}) for name in ALL},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dcn": ("dcn", {"trees": False}),
    "dcn, vectors only": ("dcn", _VECTORS),
    "deepfm": ("deepfm", {}),
    "dlrm": ("dlrm", {}),
}
"""Of the package. Only the one with the best trial is a contender."""
COMPARISONS = tuple((next(iter(DHEN)), other, "entropy") for other in [*list(DHEN)[1:], *MODELS])
_RATE = 0.002


def tune(task: Task, settings: Settings, done: Done) -> Measured:
    """Trains every contender with each strength of regularization.

    Two epochs in a row without a lower loss on the validation part end a trial.

    Args:
        task: the data.
        settings: of every training.
        done: trials that are measured.

    Yields:
        Trials, with what `measure` gives.
    """
    for contender in [*_dhen(task), *MODELS]:
        for name, l2 in missing_trials(contender, L2, done):
            yield name, _train(contender, task, l2, TUNING_SEED, settings, patience=2)


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Trains DHEN and the other model with the best trial, each as in its best trial.

    Args:
        task: the data.
        seed: the seed of the weights and the order.
        settings: of every training; the validation part chooses the number of epochs.
        done: trials, and contenders that are measured.

    Yields:
        The contender, and its `entropy` on the test part, the `lowest` one on the validation part,
        its `l2` and its number of `epochs`.
    """
    best = min(MODELS, key=lambda c: float(best_trial(done, c)["lowest"]))
    for contender in [*_dhen(task), best]:
        if contender not in done:
            l2 = best_trial(done, contender)["l2"]
            yield contender, _train(contender, task, l2, seed, settings)


def _dhen(task: Task) -> list[str]:
    """Single modules on planted data only, which have interactions of each kind."""
    return list(DHEN)[: len(DHEN) if task.name in PLANTED else 1]


def _train(
    contender: str,
    task: Task,
    l2: float,
    seed: int,
    settings: Settings,
    patience: int | None = None,
) -> Metrics:
    name, options = (DHEN | MODELS)[contender]
    build = models.get(name)
    model = make(build, task, regularized(options, l2), seed)
    best = BestEpoch(task, build, patience)
    fit(model, task, build, optimizers.LazyAdam(_RATE), settings, seed, [best])
    return {
        "entropy": entropy_on(model, task, task.test, build),
        **best.metrics(),
        "l2": l2,
    }
