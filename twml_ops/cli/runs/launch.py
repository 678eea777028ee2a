"""`twml-ops launch`: runs a whole cluster on this machine."""

from __future__ import annotations

from twml_ops import _child
from twml_ops.distribute.launch import LocalCluster


def run_cluster(
    command: list[str], servers: int, workers: int, evaluators: int, max_restarts: int
) -> None:
    """Runs a cluster until its training ends.

    Args:
        command: command of each worker. If it starts with "train", it is a command of twml-ops.
        servers: number of parameter servers.
        workers: number of workers.
        evaluators: number of evaluators.
        max_restarts: how often each process may be restarted.

    Raises:
        SystemExit: the training failed; the exit status is that of the process that failed.
    """
    if command[0] == "train":
        command = _child.command("twml_ops.cli", *command)
    with LocalCluster(
        command, servers, workers, max_restarts=max_restarts, evaluators=evaluators
    ) as cluster:
        status = cluster.wait()
    if status:
        raise SystemExit(status)
