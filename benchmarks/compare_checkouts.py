"""Compares the speed of the kernels of this checkout with those of another one.

`python -m benchmarks.compare_checkouts OTHER` runs each contender of `twml_ops` in two processes,
each with the package of one (built) checkout. Their turns are interleaved, so that the workload,
the code of the contenders and the noise of the machine are the same for both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import timing
from benchmarks.contender import EAGER, FORWARD, RULES, SLICES, TWML_OPS

ROOT = Path(__file__).parents[1]
SKEWS = {"Zipf 1.05": 1.05, "uniform": 0.0}
MEASURED = [
    (FORWARD, TWML_OPS),
    (FORWARD, EAGER),
    *((r, way) for r in RULES for way in (TWML_OPS, SLICES)),
]


def main(
    other: Annotated[Path, typer.Argument(help="The other checkout, built in place.")],
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each process.")] = 11,
    quick: Annotated[bool, typer.Option(help="Tiny sizes, as a test.")] = False,
) -> None:
    """Prints the median time of each kernel in both checkouts, and their ratio."""
    print("| task | contender | ids | other, ms | this, ms | this ÷ other |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    ratios = []
    with Child(other, quick) as before, Child(ROOT, quick) as now:
        for ids, skew in SKEWS.items():
            for task, contender in MEASURED:
                old, new = compare(before, now, task, contender, skew, rounds)
                ratios.append(new / old)
                times = f"{old * 1e3:.3g} | {new * 1e3:.3g} | {ratios[-1]:.3f}"
                print(f"| {task} | {contender} | {ids} | {times} |", flush=True)
    print(f"\nMedian of the {len(ratios)} ratios: {statistics.median(ratios):.3f}")


def compare(
    before: Child, now: Child, task: str, contender: str, skew: float, rounds: int
) -> tuple[float, float]:
    """Median seconds per call of one contender in the two processes, in interleaved turns."""
    runs = {"before": before, "now": now}
    for child in runs.values():
        child.prepare(task, contender, skew)
    times = timing.interleave({n: c.run for n, c in runs.items()}, range(8), rounds=rounds)
    return times["before"].median, times["now"].median


class Child:
    """A process that runs contenders with the package of one checkout.

    Args:
        root: folder of the checkout.
        quick: use tiny sizes.
    """

    def __init__(self, root: Path, quick: bool) -> None:
        self._channel, child_end = Pipe()
        number = child_end.fileno()
        script = str(ROOT / "benchmarks" / "checkout_process.py")
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        size = ["--quick"] if quick else []
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, script, str(root.resolve()), str(number), *size],
                env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
                pass_fds=[number],
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._process.wait()

    def prepare(self, task: str, contender: str, skew: float) -> None:
        """Prepares the contender that `run` calls."""
        self._request((task, contender, skew))

    def run(self, batch: int) -> None:
        """Calls the contender once on a batch."""
        self._request(batch)

    def _request(self, request: object) -> None:
        try:
            self._channel.send(request)
            self._channel.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"a process ended with status {self._process.wait()}") from None


if __name__ == "__main__":
    typer.run(main)
