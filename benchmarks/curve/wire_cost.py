"""The CPU time that the network of the hosts costs more than the loopback of one host.

`twml-ops plan --measure` lets processes of one host exchange messages. Between hosts, which are
network namespaces here, the system's kernel has more to do for each byte.
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
MESSAGE = 2**18  # bytes
ROUNDS = 400
SECONDS = 120.0
HOSTS = ("a", "b")


def more_seconds_a_byte(egress: float, cores: Collection[int]) -> float:
    """Measures it.

    Args:
        egress: bytes per second that a host can send.
        cores: numbers of the cores of the processes.

    Returns:
        Seconds of CPU time of one host for each byte that it both sends and receives.
    """
    with Network(HOSTS) as network:
        network.cap(egress)
        between = _seconds_a_byte(network, HOSTS, network.address("a"), cores)
        within = _seconds_a_byte(network, ("a", "a"), "127.0.0.1", cores)
    return max(0.0, between - within)


def _seconds_a_byte(
    network: Network, hosts: tuple[str, str], address: str, cores: Collection[int]
) -> float:
    """Mean CPU time of two processes that send each other messages in turns."""
    runs = (_answer, _ask)
    processes = []
    try:
        for host, run in zip(hosts, runs, strict=True):
            target = functools.partial(run, address)
            processes.append(fork_on(network, host, target, cores))
            processes[-1].receive(SECONDS)  # it listens, or has a connection
        used = [process.receive(SECONDS)["seconds"] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return sum(used) / len(used) / (ROUNDS * MESSAGE)


def _answer(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        _tell()
        connection, _ = server.accept()
    _exchange(connection, first=False)


def _ask(address: str) -> None:
    connection = socket.create_connection((address, PORT))
    _tell()
    _exchange(connection, first=True)


def _exchange(connection: socket.socket, first: bool) -> None:
    message = bytearray(MESSAGE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    before = _cpu_seconds()
    for _ in range(ROUNDS):
        if first:
            connection.sendall(message)
        connection.recv_into(message, MESSAGE, socket.MSG_WAITALL)
        if not first:
            connection.sendall(message)
    _tell(seconds=_cpu_seconds() - before)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)
