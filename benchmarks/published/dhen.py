"""DHEN beside its modules alone and the models of the package."""

from __future__ import annotations

from typing import Any

from benchmarks.published.task import (
    BestEpoch,
    Done,
    Measured,
    Settings,
    Task,
    entropy_on,
    fit,
    make,
)
from twml_ops import layers, models, optimizers

CLAIM = (
    "Zhang et al. 2022: 0.27 % less normalized entropy than the best baseline, 1.2 × its training "
    "throughput."
)
ALL = tuple(layers.DHEN_MODULES)
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "DHEN, all modules": ("dhen", {"modules": ALL}),
    **{f"DHEN, {name} alone": ("dhen", {"modules": (name,)}) for name in ALL},
    "dcn": ("dcn", {"trees": False}),
    "deepfm": ("deepfm", {"l2": 0.01, "linear_l2": 0.001}),
    "dlrm": ("dlrm", {"l2": 0.01, "linear_l2": 0.001}),
}
_WEAK = {"l2": 0.01, "linear_l2": 0.001}
_RATE = 0.002


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Trains every contender with Adam, for the number of epochs that the validation part chooses.

    Args:
        task: the data.
        seed: of the weights and the order.
        settings: of every training.
        done: contenders that are measured.

    Yields:
        Contender, and its `entropy` on the test part and number of `epochs`.
    """
    for contender, (name, options) in CONTENDERS.items():
        if contender in done:
            continue
        build = models.get(name)
        model = make(build, task, {**(_WEAK if name == "dhen" else {}), **options}, seed)
        best = BestEpoch(task, build)
        fit(model, task, build, optimizers.LazyAdam(_RATE), settings, seed, callbacks=[best])
        yield (
            contender,
            {
                "entropy": entropy_on(model, task, task.test, build),
                "epochs": float(1 + best.entropies.index(min(best.entropies))),
            },
        )
