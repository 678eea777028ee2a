"""`sudo python -m benchmarks.distributed`: as `benchmarks.run distributed`, also in pieces."""

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
        str, typer.Option(help='Cells whose "setting: strategy" contains this; see --show.')
    ] = "",
    seconds: Annotated[
        float, typer.Option(min=0, help="For each cell; three rounds at least.")
    ] = 6.0,
    quick: Annotated[bool, typer.Option(help="Tiny sizes: shows that it runs, no more.")] = False,
    show: Annotated[bool, typer.Option(help="Only list what there is to measure.")] = False,
    docs: Annotated[Path, typer.Option(help="Where performance.md is.")] = Path("docs"),
) -> None:
    """Measures distributed training on namespaces with a capped egress; adds to what is there."""
    if show:
        for setting in grid.SETTINGS:
            for strategy in setting.strategies:
                print(f"{setting.name}: {strategy}")
        return
    why = unavailable()
    if why is not None:
        print(f"benchmarks.distributed: {why}", file=sys.stderr)
        raise SystemExit(1)
    from benchmarks import run

    try:
        command = " ".join(["python -m benchmarks.distributed", *sys.argv[1:]])
        run.measure_distributed(docs, command, seconds=seconds, quick=quick, only=only)
    except (NetworkError, HostError) as e:
        print(f"benchmarks.distributed: {e}", file=sys.stderr)
        raise SystemExit(1) from e


if __name__ == "__main__":
    typer.run(main)
