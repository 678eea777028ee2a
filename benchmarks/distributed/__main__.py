"""`sudo python -m benchmarks.distributed`: measures all or some cells of distributed training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.distributed import grid
from benchmarks.distributed.network import NetworkError, unavailable
from benchmarks.distributed.process import HostError


def main(
    only: Annotated[
        str,
        typer.Option(
            help='Measure cells whose "setting: strategy" contains this text; see --show.'
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds for each cell; at least three rounds are run.")
    ] = 6.0,
    quick: Annotated[bool, typer.Option(help="Tiny sizes, as a test.")] = False,
    show: Annotated[bool, typer.Option(help="List the cells and exit.")] = False,
    docs: Annotated[Path, typer.Option(help="Folder of performance.md.")] = Path("docs"),
) -> None:
    """Measures distributed training on hosts with a capped egress; other results are kept."""
    if show:
        for setting in grid.SETTINGS:
            for strategy in setting.strategies:
                print(f"{setting.name}: {strategy}")
        return
    reason = unavailable()
    if reason is not None:
        print(f"benchmarks.distributed: {reason}", file=sys.stderr)
        raise SystemExit(1)
    from benchmarks import machine, run

    try:
        command = machine.command_line("benchmarks.distributed")
        run.measure_distributed(docs, command, seconds=seconds, quick=quick, only=only)
    except (NetworkError, HostError) as e:
        print(f"benchmarks.distributed: {e}", file=sys.stderr)
        raise SystemExit(1) from e


if __name__ == "__main__":
    typer.run(main)
