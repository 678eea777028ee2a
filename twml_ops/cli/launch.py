"""`twml-ops launch`: runs a whole cluster on this machine, for development."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, get_args

import typer

from twml_ops.cli.options import Debug
from twml_ops.training.errors import UserError


def launch(
    command: Annotated[
        list[str],
        typer.Argument(
            help="Command of each worker, after --: train and its options, or any program.",
            show_default=False,
        ),
    ],
    ps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of parameter servers. [default: 1, or with --servers-in-workers one for "
            "each worker]",
        ),
    ] = None,
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
            help="The tables are on the workers: the servers run in their processes, which "
            "exchange less with them.",
        ),
    ] = False,
    evaluator: Annotated[
        bool,
        typer.Option(
            "--evaluator",
            help="Add a process that evaluates each checkpoint, and publishes it with --publish.",
        ),
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
    if peers is not None:
        for option, given in (
            ("--ps", ps is not None),
            ("--evaluator", evaluator),
            ("--servers-in-workers", servers_in_workers),
            ("--workers", workers > 1),
            ("--workers-per-host", workers_per_host > 1),
        ):
            if given:
                raise UserError(f"{option} is for clusters with servers, got --peers as well")
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
    if ps is None:
        ps = count if servers_in_workers else 1
    elif servers_in_workers and not ps:
        raise UserError("--servers-in-workers: needs at least one server, got --ps 0")
    run_cluster(command, ps, count, int(evaluator), max_restarts, servers_in_workers)


def run_cluster(
    command: list[str],
    servers: int,
    workers: int,
    evaluators: int,
    max_restarts: int,
    servers_in_workers: bool = False,
) -> None:
    """Runs a cluster until its training ends.

    Args:
        command: command of each worker. If it starts with "train", it is a command of twml-ops.
        servers: number of parameter servers.
        workers: number of workers.
        evaluators: number of evaluators.
        max_restarts: how often each process may be restarted.
        servers_in_workers: whether workers run the servers in their processes.

    Raises:
        SystemExit: the training failed; the exit status is that of the process that failed.
    """
    from twml_ops.distribute.launch import LocalCluster

    with LocalCluster(
        _program(command),
        servers,
        workers,
        max_restarts=max_restarts,
        evaluators=evaluators,
        servers_in_workers=servers_in_workers,
    ) as cluster:
        status = cluster.wait()
    if status:
        raise SystemExit(status)


def run_peers(
    command: list[str], peers: int, options: dict[str, Any], transport: str, max_restarts: int
) -> None:
    """Runs peers until their training ends.

    Args:
        command: command of each peer. If it starts with "train", it is a command of twml-ops.
        peers: number of peers.
        options: arguments of `twml_ops.distribute.PeerAveraging`.
        transport: how messages travel; see `twml_ops.peers.launch.mpirun_command`.
        max_restarts: how often all peers may be started again, and how many may be replaced.

    Raises:
        UserError: an option has another value, or there is no mpirun.
        SystemExit: the training failed; the exit status is that of mpirun.
    """
    from twml_ops.peers import launch as peers_launch
    from twml_ops.peers.channel import Consistency
    from twml_ops.peers.dataflow import Name
    from twml_ops.training.config import PEER_OPTIONS

    choices: dict[str, tuple[str, ...]] = {
        "dataflow": get_args(Name),
        "consistency": get_args(Consistency),
        "what": ("weights", "gradients"),
    }
    for name, possible in choices.items():
        if options[name] not in possible:
            raise UserError(f"--{name}: expected {', '.join(possible)}, got {options[name]!r}")
    if transport not in ("shared", "tcp"):
        raise UserError(f"--transport: expected shared, tcp, got {transport!r}")
    try:
        result = peers_launch.run_job(
            *(_program(command), peers, max_restarts, transport),
            {PEER_OPTIONS: json.dumps({**options, "start": secrets.token_hex(8)})},
        )
    except FileNotFoundError as e:
        raise UserError(str(e)) from e
    lost = sorted(set(range(peers)) - set(result.finished))
    print(
        f"{len(result.finished)} of {peers} peers finished; went on without others "
        f"{result.shrinks} times (lost: {lost}), {result.joins} were replaced; all started again "
        f"{result.starts - 1} times"
    )
    if result.status:
        raise SystemExit(result.status)


def _program(command: list[str]) -> list[str]:
    """The command line of a process; "train" is a command of twml-ops."""
    from twml_ops import _child

    return _child.command("twml_ops.cli", *command) if command[0] == "train" else command
