"""`twml-ops launch`: runs a whole cluster on this machine, for development."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def launch(
    command: Annotated[
        list[str],
        typer.Argument(
            help="Command of each worker, after --: train and its options, or any program.",
            show_default=False,
        ),
    ],
    ps: Annotated[int, typer.Option(min=0, help="Number of parameter servers.")] = 1,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of hosts of workers to simulate.")
    ] = 1,
    workers_per_host: Annotated[
        int, typer.Option(min=1, help="Worker processes on each of these hosts.")
    ] = 1,
    evaluator: Annotated[
        bool, typer.Option("--evaluator", help="Add a process that evaluates each checkpoint.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often each process may be restarted.")
    ] = 50,
    debug: Debug = False,
) -> None:
    """Runs parameter servers and workers on this machine, with TF_CONFIG, until training ends.

    A process that dies is restarted. A worker continues from the state of the servers. If a server
    died, training continues from the last checkpoint. Example: twml-ops launch --ps 2 --workers 3
    -- train --data flights --out out/flights
    """
    from twml_ops.cli.runs.launch import run_cluster

    run_cluster(command, ps, workers * workers_per_host, int(evaluator), max_restarts)
