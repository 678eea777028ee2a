"""The C program that makes requests for benchmarks/serving.py: its build and its runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import twml_ops
from benchmarks.serving_requests import make_request

PACKAGE = Path(twml_ops.__file__).parent
PROGRAM = Path(__file__).with_name("scorer_latency.c")
DISTINCT_REQUESTS = {1: 1024, 20: 64, 200: 8}  # a request has been received: it is in a cache


class Percentiles(NamedTuple):
    """Of one run.

    Attributes:
        p50: microseconds.
        p99: microseconds.
        rate: requests per second of all callers.
        cpu: CPU time of a request in microseconds.
    """

    p50: float
    p99: float
    rate: float
    cpu: float


def median(runs: Sequence[Percentiles]) -> dict[str, float]:
    """The medians over runs."""
    return Percentiles(*np.median(np.array(runs), axis=0).tolist())._asdict()


class CProgram:
    """The program that makes requests through the C interface.

    Args:
        folder: where it is compiled, and its requests are written.
        model: the folder of the exported model.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, model
        self._program = folder / "scorer_latency"
        command = ["gcc", "-O2", "-std=c11", f"-I{PACKAGE / 'include'}", str(PROGRAM)]
        command += ["-o", str(self._program), f"-L{PACKAGE}", "-ltwml_ops_scorer", "-pthread"]
        subprocess.run([*command, f"-Wl,-rpath,{PACKAGE}"], check=True)

    def write_requests(self, rows: int) -> None:
        """Writes the requests of a size; scorer_latency.c describes the file."""
        names = list(json.loads((self._model / "scorer.json").read_text())["inputs"])
        count = DISTINCT_REQUESTS.get(rows, 64)
        with (self._folder / f"requests{rows}").open("wb") as file:
            file.write(np.int64(count).tobytes())
            for seed in range(1, count + 1):
                request = make_request(rows, seed)
                file.write(np.int64(rows).tobytes())
                for name in names:
                    data = request[name].tobytes()
                    file.write(np.array([request[name].size, len(data)]).tobytes())
                    file.write(data + bytes(-len(data) % 8))

    def run(self, rows: int, callers: int, threads: int, seconds: float) -> Percentiles:
        """Makes requests.

        Args:
            rows: rows of a request.
            callers: number of threads that make requests.
            threads: number of threads that share the rows of a request.
            seconds: for which they do.
        """
        arguments = [self._model, self._folder / f"requests{rows}", callers, threads, seconds]
        command = [str(self._program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return Percentiles(*map(float, done.stdout.split()))
