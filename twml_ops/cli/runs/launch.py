"""`twml-ops launch`: runs a whole cluster on this machine."""

from __future__ import annotations

import json
from typing import Any, get_args

from twml_ops import _child
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.peer_runner import OPTIONS
from twml_ops.distribute.launch import LocalCluster
from twml_ops.peers import launch as peers_launch
from twml_ops.peers.channel import Consistency
from twml_ops.peers.dataflow import Name


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
            *(_program(command), peers, max_restarts, transport), {OPTIONS: json.dumps(options)}
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
    return _child.command("twml_ops.cli", *command) if command[0] == "train" else command
