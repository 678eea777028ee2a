"""DHEN beside its modules alone and the models of the package."""

from __future__ import annotations

from typing import Any

from benchmarks.published.task import (
    L2,
    TRIAL,
    BestEpoch,
    Done,
    Measured,
    Settings,
    Task,
    entropy_on,
    fit,
    make,
    regularized,
)
from twml_ops import layers, models, optimizers

CLAIM = (
    "Zhang et al. 2022: 0.27 % less normalized entropy than the best baseline, 1.2 × its training "
    "throughput."
)
DATA = ("mixed", "criteo", "flights")
ALL = tuple(layers.DHEN_MODULES)
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "DHEN, all modules": ("dhen", {"modules": ALL}),
    **{f"DHEN, {name} alone": ("dhen", {"modules": (name,)}) for name in ALL},
    "dcn": ("dcn", {"trees": False}),
    "deepfm": ("deepfm", {}),
    "dlrm": ("dlrm", {}),
}
_RATE = 0.002


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Trains every contender with Adam and each strength of regularization.

    The validation part chooses the strength and the number of epochs.

    Args:
        task: the data.
        seed: of the weights and the order.
        settings: of every training.
        done: contenders that are measured.

    Yields:
        Trials; then the contender, and its `entropy` on the test part, its `l2` and its number of
        `epochs`.
    """
    for contender, (name, options) in CONTENDERS.items():
        if contender in done:
            continue
        build, tried = models.get(name), []
        for l2 in L2:
            trial = f"{contender}{TRIAL}{l2:g}"
            found = done.get(trial)
            if found is None:
                model = make(build, task, regularized(options, l2), seed)
                best = BestEpoch(task, build)
                fit(model, task, build, optimizers.LazyAdam(_RATE), settings, seed, [best])
                found = {
                    "entropy": entropy_on(model, task, task.test, build),
                    "lowest": min(best.entropies),
                    "epochs": float(1 + best.entropies.index(min(best.entropies))),
                    "l2": l2,
                }
                yield trial, found
            tried.append(found)
        yield contender, min(tried, key=lambda each: float(each["lowest"]))
