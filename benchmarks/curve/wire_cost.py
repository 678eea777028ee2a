"""The CPU time that the network of the hosts costs more than the loopback of one host.

`twml-ops plan --measure` lets processes of one host exchange messages. Between hosts, which are
network namespaces here, the system's kernel has more to do for each message and each byte.
"""

from __future__ import annotations

import functools
import json
import resource
import socket
from collections.abc import Collection
from typing import Any

from benchmarks.distributed.forked import fork_on
from benchmarks.distributed.network import Network

PORT = 2224
SMALL, LARGE = 2**10, 2**18  # bytes of a message
ROUNDS = 400
SECONDS = 120.0
HOSTS = ("a", "b")


def more_seconds(egress: float, cores: Collection[int]) -> dict[str, float]:
    """Measures it, with messages of two sizes.

    Args:
        egress: bytes per second that a host can send.
        cores: numbers of the cores of the processes.

    Returns:
        Seconds of CPU time of the host that sends or receives, for each "message" and each "byte".
    """
    with Network(HOSTS) as network:
        network.cap(egress)
        small, large = (
            _seconds(network, HOSTS, network.address("a"), size, cores)
            - _seconds(network, ("a", "a"), "127.0.0.1", size, cores)
            for size in (SMALL, LARGE)
        )
    byte = max(0.0, (large - small) / (LARGE - SMALL))
    return {"message": max(0.0, small - SMALL * byte), "byte": byte}


def _seconds(
    network: Network, hosts: tuple[str, str], address: str, size: int, cores: Collection[int]
) -> float:
    """Mean CPU time on one side of a message, of two processes that send them in turns."""
    runs = (_answer, _ask)
    processes = []
    try:
        for host, run in zip(hosts, runs, strict=True):
            target = functools.partial(run, address, size)
            processes.append(fork_on(network, host, target, cores))
            processes[-1].receive(SECONDS)  # it listens, or has a connection
        used = [process.receive(SECONDS)["seconds"] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return sum(used) / (len(used) * 2 * ROUNDS)  # each message has two sides


def _answer(address: str, size: int) -> None:
    with socket.create_server((address, PORT)) as server:
        _tell()
        connection, _ = server.accept()
    _exchange(connection, size, first=False)


def _ask(address: str, size: int) -> None:
    connection = socket.create_connection((address, PORT))
    _tell()
    _exchange(connection, size, first=True)


def _exchange(connection: socket.socket, size: int, first: bool) -> None:
    message = bytearray(size)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    before = _cpu_seconds()
    for _ in range(ROUNDS):
        if first:
            connection.sendall(message)
        connection.recv_into(message, size, socket.MSG_WAITALL)
        if not first:
            connection.sendall(message)
    _tell(seconds=_cpu_seconds() - before)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)
