"""The CPU time of a step: how much there is of each part, and what one of each part costs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Parts that use one core; the others use all cores of a host.
SERIAL = ("step", "message", "table", "shard")


@dataclass(frozen=True)
class StepParts:
    """A number for each part of a step that takes CPU time: an amount, or the seconds of one.

    Args:
        step: The step itself: Python, the calls of TensorFlow, the input, a small dense part.
        message: Messages that a process exchanges, sent or received.
        table: Tables, for each of which a process runs some ops.
        entry: Entries, which are packed, unpacked and grouped by their ids.
        activation: Numbers of products that a process sends or receives, with their gradients. In
            one process nothing is sent, but they are computed with.
        product: Products of an entry and a weight, and their gradients: entries times columns.
        weight: Weights that are read and updated: distinct ids times columns.
        shard: Shards of tables, with each of which a worker exchanges tensors of their own.
        row: Distinct ids, which are packed, or whose rows are looked for in memory.
        output: Numbers of products that a worker computes with, however many servers send them.

    Raises:
        ValueError: A number is negative.
    """

    step: float = 0.0
    message: float = 0.0
    table: float = 0.0
    entry: float = 0.0
    activation: float = 0.0
    product: float = 0.0
    weight: float = 0.0
    shard: float = 0.0
    row: float = 0.0
    output: float = 0.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must not be negative, got {value}")

    def times(self, costs: StepParts) -> CpuTime:
        """Computes the CPU time of these amounts.

        Args:
            costs: Seconds of one of each part.

        Returns:
            The CPU time of all parts.
        """
        spent = {
            f.name: getattr(self, f.name) * getattr(costs, f.name) for f in dataclasses.fields(self)
        }
        serial = sum(spent[name] for name in SERIAL)
        return CpuTime(serial, sum(spent.values()) - serial)


@dataclass(frozen=True)
class CpuTime:
    """CPU time of a host in a step.

    Attributes:
        serial: Seconds of what one core does after the other.
        parallel: Seconds of what all cores do together.
    """

    serial: float = 0.0
    parallel: float = 0.0

    @property
    def total(self) -> float:
        """Seconds on one core."""
        return self.serial + self.parallel

    def __add__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.serial + other.serial, self.parallel + other.parallel)

    def elapsed(self, cores: float) -> float:
        """Computes how long it takes.

        Args:
            cores: Of the host; less than 1 for a share of one.

        Returns:
            Seconds.
        """
        return self.serial / min(cores, 1.0) + self.parallel / cores


@dataclass(frozen=True)
class CpuCosts:
    """What the parts of a step cost on a host, as `twml-ops plan --measure` measures it.

    Attributes:
        alone: Seconds of CPU time of one of each part, of a training in one process.
        worker: The same of a worker of a cluster.
        server: The same of a server.
    """

    alone: StepParts
    worker: StepParts
    server: StepParts

    def to_json(self) -> dict[str, dict[str, float]]:
        """Converts the costs to values that JSON can hold.

        Returns:
            Microseconds by process and part.
        """
        return {
            process: {part: 1e6 * seconds for part, seconds in parts.items()}
            for process, parts in dataclasses.asdict(self).items()
        }

    @staticmethod
    def from_json(values: Any) -> CpuCosts:
        """Reads what `to_json` returned.

        Args:
            values: Microseconds by process and part; missing parts cost nothing.

        Returns:
            The costs.

        Raises:
            ValueError: A process is missing, a part is unknown, or a number is not one or negative.
        """
        processes = [f.name for f in dataclasses.fields(CpuCosts)]
        parts = [f.name for f in dataclasses.fields(StepParts)]
        found = {}
        for process in processes:
            of_process = values.get(process) if isinstance(values, dict) else None
            if not isinstance(of_process, dict):
                raise ValueError(
                    f"costs must have microseconds by part for {', '.join(processes)}; "
                    f"got {of_process!r:.100} for {process}"
                )
            for part, number in of_process.items():
                known = isinstance(number, (int, float)) and not isinstance(number, bool)
                if part not in parts or not known:
                    raise ValueError(
                        f"costs must be numbers for {', '.join(parts)}; "
                        f"got {part!r:.100}: {number!r:.100} for {process}"
                    )
            found[process] = StepParts(**{k: float(v) / 1e6 for k, v in of_process.items()})
        return CpuCosts(**found)


def fit_costs(amounts: Sequence[StepParts], seconds: Sequence[float]) -> StepParts:
    """Computes the costs that explain measured CPU times best.

    These are the least squares of relative errors, without negative costs. A part that no
    measurement has costs nothing.

    Args:
        amounts: What a step of each measurement has.
        seconds: CPU time of a step of each measurement, positive.

    Returns:
        Seconds of one of each part.
    """
    names = [f.name for f in dataclasses.fields(StepParts)]
    times = np.asarray(seconds, float)
    rows = np.array([[getattr(a, n) for n in names] for a in amounts]) / times[:, None]
    scales = rows.max(axis=0)
    present = [i for i in range(len(names)) if scales[i]]
    best, least = np.zeros(len(names)), math.inf
    # Few parts: the non-negative least squares are found by trying which parts cost nothing.
    for size in range(len(present), 0, -1):
        for chosen in itertools.combinations(present, size):
            columns = list(chosen)
            found, *_ = np.linalg.lstsq(
                rows[:, columns] / scales[columns], np.ones(len(times)), rcond=None
            )
            error = float(np.sum((rows[:, columns] @ (found / scales[columns]) - 1) ** 2))
            if found.min() >= 0 and error < least:
                least, best = error, np.zeros(len(names))
                best[columns] = found / scales[columns]
    return StepParts(**dict(zip(names, best.tolist(), strict=True)))
