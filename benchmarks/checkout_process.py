"""Process that runs kernels, readers and the scorer with the package of a given checkout.

Started by benchmarks/compare_checkouts.py.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

THIS = Path(__file__).parents[1]


def main(checkout: str, channel: Connection, quick: bool) -> None:
    """Answers requests: a tuple prepares a contender, a number runs it on that batch."""
    sys.path[0] = checkout
    import twml_ops  # from the given checkout; all other modules are from this one

    if Path(twml_ops.__file__).parents[1] != Path(checkout):
        raise ImportError(f"twml_ops was imported from {twml_ops.__file__}, not from {checkout}")
    sys.path[0] = str(THIS)
    from benchmarks import machine
    from benchmarks.contenders.twml import CONTENDERS
    from benchmarks.run import QUICK
    from benchmarks.workload import Workload, make_case

    machine.limit_threads(2)
    workload = QUICK if quick else Workload()
    case, run, prepared_skew = None, None, None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        while True:
            try:
                request = channel.recv()
            except EOFError:
                return
            if isinstance(request, int):
                run(request)
            else:
                task, contender, skew = request
                run = None
                gc.collect()  # frees the tables of the last one
                if task in WHOLE:
                    run = WHOLE[task](folder, quick, stack)
                else:
                    if case is None or skew != prepared_skew:
                        prepared_skew = skew
                        batches = workload.replace(skew=skew).batches(8)
                        case = make_case(workload, batches, threads=2)
                    run = CONTENDERS[task][contender](case).run
            channel.send("done")


def read_csv(folder: Path, quick: bool, _: contextlib.ExitStack) -> Callable[[int], None]:
    """Returns a function that reads a CSV file of 10 columns from its first to its last row."""
    from twml_ops.data import open_source

    rng = np.random.default_rng(0)
    rows = 1000 if quick else 200_000
    numbers = rng.normal(size=(rows, 5)).round(4)
    words = rng.integers(0, 1000, (rows, 4))
    names = [*(f"n{i}" for i in range(5)), *(f"c{i}" for i in range(4))]
    lines = [",".join(["label", *names])]
    for i in range(rows):
        fields = [str(i % 2), *map(str, numbers[i]), *(f"w{x}" for x in words[i])]
        lines.append(",".join(fields))
    path = folder / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    schema = open_source(f"csv:{path}").schema

    def run(_: int) -> None:
        blocks = open_source(f"csv:{path}", schema=schema).blocks()
        assert sum(len(block.labels) for block in blocks) == rows

    return run


def score(folder: Path, quick: bool, _: contextlib.ExitStack) -> Callable[[int], None]:
    """Returns a function that scores requests of one row with the native scorer."""
    from benchmarks.serving_requests import make_request
    from twml_ops.core import Scorer

    scorer = Scorer.load(exported(folder))
    requests = [make_request(1, seed) for seed in range(8)]

    def run(batch: int) -> None:
        for _ in range(10 if quick else 2000):
            scorer.predict(requests[batch])

    return run


def call_server(folder: Path, quick: bool, stack: contextlib.ExitStack) -> Callable[[int], None]:
    """Returns a function that sends requests of one row to `twml-ops serve` by gRPC."""
    from benchmarks import served
    from benchmarks.serving_requests import make_request

    server = stack.enter_context(served.serve(exported(folder)))
    call = server.caller("gRPC")
    requests = [served.encode("gRPC", make_request(1, seed)) for seed in range(8)]

    def run(batch: int) -> None:
        for _ in range(10 if quick else 200):
            call(requests[batch])

    return run


def exported(folder: Path) -> Path:
    """Exports the model of `benchmarks.serving`, unless the folder has it."""
    from benchmarks.serving_requests import train_model
    from twml_ops import export

    path = folder / "scorer"
    if not path.exists():
        export.to_scorer(train_model(400, 1), path)
    return path


READ, SCORE, CALL = "read a CSV file", "score 1 row", "gRPC, 1 row"
WHOLE = {READ: read_csv, SCORE: score, CALL: call_server}  # tasks that are no kernels


if __name__ == "__main__":
    main(sys.argv[1], Connection(int(sys.argv[2])), "--quick" in sys.argv)
