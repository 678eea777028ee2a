"""A process of `benchmarks.readers`: Vowpal Wabbit, or the readers of another checkout.

`python readers_process.py vw|twml_ops SOURCE BATCH_SIZE ROUNDS` prints a JSON object: for each kind
of pass its wall and CPU seconds, as a list over the rounds. It imports nothing of this repository,
so that any Python with the package can run it.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Seconds = dict[str, list[tuple[float, float]]]


def main(package: str, source: str, batch_size: int, rounds: int) -> None:
    """Runs the passes of a package and prints their seconds."""
    with tempfile.TemporaryDirectory() as folder:
        if package == "vw":
            passes = vowpal_wabbit(source, Path(folder))
        else:
            passes = other_readers(source, batch_size)
        found: Seconds = {name: [] for name in passes}
        for _ in range(rounds):
            for name, run in passes.items():
                start, cpu = time.perf_counter(), time.process_time()
                run()
                found[name].append((time.perf_counter() - start, time.process_time() - cpu))
    print(json.dumps(found))


def vowpal_wabbit(source: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """Passes over the same examples in the format of Vowpal Wabbit, compressed as the source is."""
    import vowpalwabbit

    path = Path(source.removeprefix("criteo:")).expanduser()
    compressed = path.suffix == ".gz"
    out = folder / ("examples.vw.gz" if compressed else "examples.vw")
    opened = gzip.open if compressed else open
    with opened(path, "rt") as lines, opened(out, "wt") as file:
        file.writelines(map(_as_vw, lines))

    def run(*options: str) -> Callable[[], Any]:
        command = f"--data {out} -b 22 --loss_function logistic --quiet --no_stdin"
        return lambda: vowpalwabbit.Workspace(" ".join([command, *options])).finish()

    return {
        "Vowpal Wabbit, reading alone (--noop)": run("--noop"),
        "Vowpal Wabbit, reading and training a logistic regression": run(),
    }


def _as_vw(line: str) -> str:
    label, *fields = line.rstrip("\n").split("\t")
    numbers = (f"I{i}:{x}" for i, x in enumerate(fields[:13], 1) if x)
    categories = (f"C{i}={x}" for i, x in enumerate(fields[13:], 1) if x)
    return f"{1 if label == '1' else -1} |i {' '.join(numbers)} |c {' '.join(categories)}\n"


def other_readers(source: str, batch_size: int) -> dict[str, Callable[[], Any]]:
    """Passes of the readers of the `twml_ops` that this Python finds first."""
    from twml_ops.data import open_source

    return {
        "blocks": lambda: sum(1 for _ in open_source(source).blocks()),
        'batches, layout "ragged"': lambda: sum(1 for _ in open_source(source).dataset(batch_size)),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
