"""Contenders: named implementations of a forward pass or of a training step."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.workload import Case

FORWARD = "forward"
RULES = ("sgd", "adagrad", "rowwise_adagrad", "lazy_adam")
TWML_OPS, SLICES, EAGER = "twml_ops", "twml_ops, by slices", "twml_ops, eager"


@dataclass(frozen=True)
class PreparedContender:
    """A contender that is ready to run: inputs are converted and state is allocated.

    Attributes:
        run: processes batch i and returns the output [B, D].
        table: returns the current weights, float32 [N, D]; only training steps need it.
    """

    run: Callable[[int], Any]
    table: Callable[[], np.ndarray] | None = None


class NotAvailable(Exception):
    """The package does not offer this task on this machine; the message says what is missing."""


Prepare = Callable[[Case], PreparedContender]


@dataclass(frozen=True)
class Contender:
    """A named implementation of a task.

    Attributes:
        name: as printed in tables.
        task: FORWARD, or a rule of RULES for a whole training step.
        prepare: makes it ready to run; None if it cannot run.
        missing: the reason why it cannot run.
    """

    name: str
    task: str
    prepare: Prepare | None
    missing: str = ""


MODULES = {  # module -> the package that it needs
    "benchmarks.contenders.twml": "tensorflow",
    "benchmarks.contenders.tf": "tensorflow",
    "benchmarks.contenders.torch": "torch",
    "benchmarks.contenders.fbgemm": "fbgemm_gpu",
    "benchmarks.contenders.jax": "jax",
    "benchmarks.contenders.keras_rs": "keras_rs",
    "benchmarks.contenders.scipy": "scipy",
    "benchmarks.contenders.tfra": "tensorflow",  # TFRA itself is in another environment
}
_LABELS = {
    "benchmarks.contenders.torch": "torch",
    "benchmarks.contenders.fbgemm": "FBGEMM",
    "benchmarks.contenders.jax": "JAX",
    "benchmarks.contenders.keras_rs": "keras-rs",
}


def contenders_for(task: str) -> list[Contender]:
    """All contenders for `task`; `missing` is set for packages that are not installed."""
    found = []
    for module_name, package in MODULES.items():
        if importlib.util.find_spec(package) is None:
            label = _LABELS.get(module_name, package)
            found.append(Contender(label, task, None, f"{package} is not installed"))
            continue
        offered: dict[str, dict[str, Prepare]] = importlib.import_module(module_name).CONTENDERS
        found += [Contender(name, task, p) for name, p in offered.get(task, {}).items()]
    return found
