"""`twml-ops launch`: runs a whole cluster on this machine, for development."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def launch(
    command: Annotated[
        list[str],
        typer.Argument(
            help="What every worker runs, behind `--`: `train ...`, or any program.",
            show_default=False,
        ),
    ],
    ps: Annotated[int, typer.Option(min=0, help="Parameter servers.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Hosts of workers to play.")] = 1,
    workers_per_host: Annotated[
        int, typer.Option(min=1, help="Workers on each of them, each a process.")
    ] = 1,
    evaluator: Annotated[
        bool, typer.Option("--evaluator", help="One more process evaluates each checkpoint.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often one process may be started anew.")
    ] = 50,
    debug: Debug = False,
) -> None:
    """Starts parameter servers and workers on this machine, with TF_CONFIG, until training ends.

    A process that dies is started anew and goes on from what the servers hold, or, if it was a
    server, from the last checkpoint: twml-ops launch --ps 2 --workers 3 -- train --data flights
    --out out/flights
    """
    from twml_ops.cli.runs.launch import run_cluster

    run_cluster(command, ps, workers * workers_per_host, int(evaluator), max_restarts)
