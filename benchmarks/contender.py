"""What a contender is: a named function that prepares a forward pass or a step."""

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
OURS, SLICES, EAGER = "twml_ops", "twml_ops, by slices", "twml_ops, eager"


@dataclass(frozen=True)
class Running:
    """A prepared contender: inputs converted to its own form, state allocated.

    Attributes:
        run: does the work on batch i and returns the output [B, D].
        table: the weights as they are now, float32 [N, D]; only steps need it.
    """

    run: Callable[[int], Any]
    table: Callable[[], np.ndarray] | None = None


class NotOffered(Exception):
    """The package has no such thing here; the message says what is missing."""


Prepare = Callable[[Case], Running]


@dataclass(frozen=True)
class Contender:
    """A named way to do `task`, a rule of RULES or the forward pass alone.

    `prepare` is None where `missing` tells why it cannot run.
    """

    name: str
    task: str
    prepare: Prepare | None
    missing: str = ""


SUITES = {  # module -> the package it needs
    "benchmarks.contenders.twml": "tensorflow",
    "benchmarks.contenders.tf": "tensorflow",
    "benchmarks.contenders.torch": "torch",
    "benchmarks.contenders.fbgemm": "fbgemm_gpu",
    "benchmarks.contenders.jax": "jax",
    "benchmarks.contenders.keras_rs": "keras_rs",
    "benchmarks.contenders.scipy": "scipy",
    "benchmarks.contenders.tfra": "tensorflow",  # its own is in another environment
}
_LABELS = {
    "benchmarks.contenders.torch": "torch",
    "benchmarks.contenders.fbgemm": "FBGEMM",
    "benchmarks.contenders.jax": "JAX",
    "benchmarks.contenders.keras_rs": "keras-rs",
}


def contenders(task: str) -> list[Contender]:
    """All contenders for `task`, those that are not installed marked so."""
    found = []
    for module_name, package in SUITES.items():
        if importlib.util.find_spec(package) is None:
            label = _LABELS.get(module_name, package)
            found.append(Contender(label, task, None, f"{package} is not installed"))
            continue
        offered: dict[str, dict[str, Prepare]] = importlib.import_module(module_name).CONTENDERS
        found += [Contender(name, task, p) for name, p in offered.get(task, {}).items()]
    return found
