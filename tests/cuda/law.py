"""What a law of the CUDA library is: a function that raises if the library breaks it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.cuda.cases import Checker
from tests.cuda.cpu_kernels import Reference
from tests.cuda.library import CudaLibrary

BATTERY, QUICK, ALL = range(3)  # how many laws: seconds, seconds to minutes, minutes to hours


class Lab:
    """A CUDA library and its reference.

    Args:
        cuda: The library to test.
        core: The CPU's kernels.
    """

    def __init__(self, cuda: CudaLibrary, core: Reference) -> None:
        self.cuda, self.core, self.checker = cuda, core, Checker(cuda, core)

    def size(self, emulated: int, real: int) -> int:
        """A size: a GPU does in no time what takes the emulation minutes."""
        return emulated if self.cuda.is_emulated else real


@dataclass(frozen=True)
class Law:
    """A law for some parameters.

    Attributes:
        check: The function.
        level: The smallest set that it is in: BATTERY, QUICK or ALL.
        emulated_only: Whether a real library cannot be asked.
        options: The parameters.
    """

    check: Callable[..., None]
    level: int
    emulated_only: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        options = "-".join(str(v) for v in self.options.values())
        return self.check.__name__ + (f"[{options}]" if options else "")


_LAWS: list[Law] = []


def laws(level: int, emulated: bool) -> list[Law]:
    """The laws of a set, the most important ones first."""
    found = [w for w in _LAWS if w.level <= level and (emulated or not w.emulated_only)]
    return sorted(found, key=lambda w: w.level)


def law(level: int = QUICK, emulated_only: bool = False, **parameters: Any) -> Any:
    """Declares a law, for all combinations of parameters."""

    def declare(check: Callable[..., None]) -> Callable[..., None]:
        for values in itertools.product(*parameters.values()):
            options = dict(zip(parameters, values, strict=True))
            _LAWS.append(Law(check, level, emulated_only, options))
        return check

    return declare


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
