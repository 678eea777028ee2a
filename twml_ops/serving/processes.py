"""Several processes that serve on the same ports."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from twml_ops.serving.metrics import SHARED_DIR
from twml_ops.serving.options import ServerOptions

LOG = logging.getLogger(__name__)


class ServerProcesses:
    """Serves a folder from several processes, among which the kernel divides the connections.

    A process that ends is replaced if it has served. The processes share the memory of mapped
    tables, and each finds new versions by itself. Metrics are added up over all of them.

    Args:
        folder: see `Server`.
        options: those of each process.
        count: number of processes.
        target: the function of a process. It is called with the folder, the options, and a function
            to be called when the ports are open; it serves until SIGTERM. Processes import it.
    """

    def __init__(
        self,
        folder: Path,
        options: ServerOptions,
        count: int,
        target: Callable[[Path, ServerOptions, Callable[[], None]], None],
    ) -> None:
        self._folder, self._options, self._count, self._target = folder, options, count, target
        self._context = multiprocessing.get_context("spawn")
        self._ready = self._context.SimpleQueue()
        self._processes: list[Any] = []
        self._serving: set[int] = set()  # processes, by number, that have opened their ports
        self._stopping = False

    def run(self, started: Callable[[int, int], None]) -> None:
        """Serves until this process gets SIGTERM or SIGINT.

        Args:
            started: called with the ports of REST and gRPC when all processes serve.

        Raises:
            OSError: a port is in use, or a process ends before it serves.
        """
        host, shared = self._options.host, contextlib.ExitStack()
        with shared:
            ports = [
                shared.enter_context(_reserved(host, port))
                for port in (self._options.rest_port, self._options.grpc_port)
            ]
            os.environ[SHARED_DIR] = shared.enter_context(tempfile.TemporaryDirectory())
            shared.callback(os.environ.pop, SHARED_DIR)
            self._options = dataclasses.replace(
                self._options, rest_port=ports[0], grpc_port=ports[1], share_ports=True
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                before = signal.signal(number, self._stop)
                shared.callback(signal.signal, number, before)
            shared.callback(self._end)
            for _ in range(self._count):
                self._start()
            told = False
            while self._processes:
                wait([p.sentinel for p in self._processes], timeout=None if told else 0.05)
                while not self._ready.empty():
                    self._serving.add(self._ready.get())
                if not told and len(self._serving) >= self._count:
                    told = True
                    started(*ports)
                self._replace_ended()

    def _start(self) -> None:
        arguments = self._folder, self._options, self._target, self._ready
        process = self._context.Process(target=_serve, args=arguments)
        process.start()
        self._processes.append(process)
        if self._stopping:  # a signal has come before the process was in the list
            process.terminate()

    def _replace_ended(self) -> None:
        for process in [p for p in self._processes if not p.is_alive()]:
            self._processes.remove(process)
            if self._stopping:
                continue
            if process.pid not in self._serving:  # another one would end, too
                raise OSError(f"a process ended with status {process.exitcode} before it served")
            LOG.error("a process ended with status %s; it is replaced", process.exitcode)
            self._start()

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for process in self._processes:
            process.terminate()

    def _end(self) -> None:
        self._stop()
        for process in self._processes:
            process.join(self._options.grace + 5)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(
    folder: Path,
    options: ServerOptions,
    target: Callable[[Path, ServerOptions, Callable[[], None]], None],
    ready: Any,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends this one
    target(folder, options, lambda: ready.put(os.getpid()))


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """Reserves a port that is not in use for this process and its children; 0 is a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))
            alone.listen(1)  # fails if another process listens, which may share its port, too
        shared = socket.socket(family, socket.SOCK_STREAM)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((host, port))
    except OSError as e:
        raise OSError(f"cannot listen on {host}:{port}: {e}") from e
    with shared:  # it does not listen, so that it gets no connections
        yield shared.getsockname()[1]
