"""Compares the speed of kernels, readers and the scorer of this checkout with another one.

`python -m benchmarks.compare_checkouts OTHER` runs each contender of `twml_ops` in three processes:
two with the package of the other (built) checkout and one with the package of this one. Their turns
are interleaved, so that the workload, the code of the contenders and the noise of the machine are
the same for all. The ratios of the two processes with the same package show the noise.
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
from benchmarks.checkout_process import CALL, READ, SCORE
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
    task: Annotated[
        list[str] | None, typer.Option(help="Task to measure. Repeatable; default: all.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Tiny sizes, as a test.")] = False,
) -> None:
    """Prints the median time of each task in both checkouts, and their ratio."""
    print("| task | contender | ids | other, ms | this, ms | this ÷ other | other ÷ other |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    tasks = [(kernel, way, ids) for ids in SKEWS for kernel, way in MEASURED]
    tasks += [(whole, "", "") for whole in (READ, SCORE, CALL)]
    tasks = [t for t in tasks if not task or t[0] in task]
    found = []
    with Child(other, quick) as old, Child(other, quick) as copy, Child(ROOT, quick) as new:
        for name, way, ids in tasks:
            before, again, now = compare([old, copy, new], name, way, SKEWS.get(ids, 0), rounds)
            found.append((now / before, again / before))
            times = f"{before * 1e3:.3g} | {now * 1e3:.3g}"
            print(f"| {name} | {way} | {ids} | {times} | {found[-1][0]:.3f} | {found[-1][1]:.3f} |")
            sys.stdout.flush()
    for name, ratios in zip(
        ("this ÷ other", "other ÷ other"), zip(*found, strict=True), strict=True
    ):
        print(
            f"\n{name}: median {statistics.median(ratios):.3f} of {len(ratios)} ratios, "
            f"{min(ratios):.3f} to {max(ratios):.3f}"
        )


def compare(
    children: list[Child], task: str, contender: str, skew: float, rounds: int
) -> list[float]:
    """Median seconds per call of one contender in each process, in interleaved turns."""
    for child in children:
        child.prepare(task, contender, skew)
    runs = {str(i): child.run for i, child in enumerate(children)}
    times = timing.interleave(runs, range(8), rounds=rounds)
    return [times[name].median for name in runs]


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
