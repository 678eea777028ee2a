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
    servers_in_workers: Annotated[
        bool,
        typer.Option(
            "--servers-in-workers",
            help="Run the servers in the processes of workers, which exchange less with them.",
        ),
    ] = False,
    evaluator: Annotated[
        bool, typer.Option("--evaluator", help="Add a process that evaluates each checkpoint.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often each process, or all peers, may be restarted.")
    ] = 50,
    peers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of peers that average their weights, without servers (needs mpi4py).",
            show_default=False,
            rich_help_panel="Peers",
        ),
    ] = None,
    every: Annotated[
        int,
        typer.Option(
            min=1, help="Batches between two exchanges of weights.", rich_help_panel="Peers"
        ),
    ] = 16,
    what: Annotated[
        str,
        typer.Option(
            help="What peers average: weights, or gradients (sums of updates).",
            rich_help_panel="Peers",
        ),
    ] = "weights",
    dataflow: Annotated[
        str,
        typer.Option(
            help="Who sends to whom: all, halton, chord or ring.", rich_help_panel="Peers"
        ),
    ] = "all",
    consistency: Annotated[
        str,
        typer.Option(
            help="Whether peers wait for each other: bsp, async or ssp.", rich_help_panel="Peers"
        ),
    ] = "bsp",
    staleness: Annotated[
        int,
        typer.Option(
            min=0,
            help="With ssp: exchanges by which a peer may be ahead.",
            rich_help_panel="Peers",
        ),
    ] = 4,
    transport: Annotated[
        str,
        typer.Option(
            help="How messages travel: shared (memory), or tcp as between hosts.",
            rich_help_panel="Peers",
        ),
    ] = "shared",
    debug: Debug = False,
) -> None:
    """Runs parameter servers and workers on this machine, with TF_CONFIG, until training ends.

    A process that dies is restarted. A worker continues from the state of the servers. If a server
    died, training continues from the last checkpoint. Example: twml-ops launch --ps 2 --workers 3
    -- train --data flights --out out/flights

    With --peers, ranks of mpirun train without servers. If one dies, the others divide its data
    after the epoch, and a new process takes its place. If the job fails, all ranks are started
    again from their last checkpoints.
    """
    from twml_ops.cli.runs.launch import run_cluster, run_peers

    if peers is not None:
        options = {
            "every": every,
            "what": what,
            "dataflow": dataflow,
            "consistency": consistency,
            "staleness": staleness,
        }
        run_peers(command, peers, options, transport, max_restarts)
        return

    count = workers * workers_per_host
    run_cluster(command, ps, count, int(evaluator), max_restarts, servers_in_workers)
