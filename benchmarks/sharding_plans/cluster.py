"""Servers and a worker, each a process on a host of its own, that train a job of many tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from benchmarks.distributed.network import Network
from benchmarks.distributed.process import HostProcess, run_module

PORT = 2222
SECONDS = 1200.0


def host_names(servers: int) -> list[str]:
    """The names of the hosts: the servers and then the worker."""
    return [*(f"server{i}" for i in range(servers)), "worker"]


@contextlib.contextmanager
def cluster_of(network: Network, job: dict[str, Any]) -> Iterator[list[HostProcess]]:
    """Starts the processes of all hosts, and connects the worker.

    Args:
        network: the hosts of `host_names`.
        job: arguments of `power_law_job`.

    Yields:
        The processes, in the order of the hosts; they are killed afterwards.
    """
    with contextlib.ExitStack() as stack:
        processes: list[HostProcess] = []
        for host in network.hosts:
            module = "benchmarks.sharding_plans.process"
            processes.append(run_module(network, host, module, {"TF_CPP_MIN_LOG_LEVEL": "2"}))
            stack.callback(processes[-1].kill)
        *addresses, worker = (f"{network.address(host)}:{PORT}" for host in network.hosts)
        cluster = {"servers": addresses, "workers": [worker]}
        for i, process in enumerate(processes[:-1]):
            process.request({"do": "serve", "index": i, **cluster}, SECONDS)
        processes[-1].request({"do": "connect", "job": job, **cluster}, SECONDS)
        yield processes
