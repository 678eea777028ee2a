"""Several processes that serve on the same ports."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from twml_ops.serving.metrics import SHARED_DIR, ProcessCounts
from twml_ops.serving.options import ServerOptions

LOG = logging.getLogger(__name__)
STEADY_SECONDS = 60.0
"""A process that has served for as long begins anew with the attempts to replace it."""
MAX_DELAY = 60.0
"""Most seconds between two attempts to replace a process."""


def delay_of(failures: int) -> float:
    """Seconds before the attempt that follows some failures in a row: 0, 1, 2, 4, ..."""
    return 0.0 if failures < 2 else min(MAX_DELAY, 2.0 ** (failures - 2))


class _Place:
    """A place for a process, and what has happened in it.

    Attributes:
        process: the process; None between two attempts.
        ready: the pipe by which it tells that it serves; None once it has, or has ended.
        since: when it began to serve; None before.
        failures: ends in a row, each within `STEADY_SECONDS` of serving.
        in_vain: whether the last process has ended before it served.
        due: when the next attempt may begin.
    """

    def __init__(self) -> None:
        self.process: Any = None
        self.ready: Any = None
        self.since: float | None = None
        self.failures = 0
        self.in_vain = False
        self.due = 0.0


class ServerProcesses:
    """Serves a folder from several processes, among which the kernel divides the connections.

    All processes have to serve once. A process that ends later is replaced, at once the first time,
    and after growing delays if its replacements end as well; the others go on. The processes share
    the memory of mapped tables, and each finds new versions by itself. Metrics are added up over
    all of them.

    Args:
        folder: see `Server`.
        options: the options of each process.
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
        self._folder, self._options, self._target = folder, options, target
        self._context = multiprocessing.get_context("spawn")
        self._places = [_Place() for _ in range(count)]
        self._counts = ProcessCounts(wanted=count)
        self._stopping = False

    def run(self, started: Callable[[int, int, int], None]) -> None:
        """Serves until this process gets SIGTERM or SIGINT.

        Args:
            started: called with the ports of REST, gRPC and health when all processes serve.

        Raises:
            OSError: a port is in use, a process ends before it serves for the first time, or none
                serves any more and none could be replaced.
        """
        options = self._options
        with contextlib.ExitStack() as shared:
            ports = [
                shared.enter_context(_reserved(options.host, port))
                for port in (options.rest_port, options.grpc_port, options.health_port)
            ]
            os.environ[SHARED_DIR] = shared.enter_context(tempfile.TemporaryDirectory())
            shared.callback(os.environ.pop, SHARED_DIR)
            rest, grpc, health = ports
            self._options = dataclasses.replace(
                options, rest_port=rest, grpc_port=grpc, health_port=health, share_ports=True
            )
            signals, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            shared.callback(os.close, signals)
            shared.callback(os.close, wake)

            def stop(*_: object) -> None:
                self._stop()
                with contextlib.suppress(BlockingIOError):
                    os.write(wake, b"x")  # ends a wait, also one of no process

            for number in (signal.SIGTERM, signal.SIGINT):
                before = signal.signal(number, stop)
                shared.callback(signal.signal, number, before)
            shared.callback(self._end)
            self._count()
            told = False
            while not self._stopping:
                self._start_due(first=not told)
                self._wait(signals)
                self._look(first=not told)
                if not told and self._counts.serving == len(self._places):
                    told = True
                    started(rest, grpc, health)

    def _start_due(self, first: bool) -> None:
        """Starts a process in each place whose time has come."""
        for place in self._places:
            if place.process is not None or place.due > time.monotonic() or self._stopping:
                continue
            place.ready, sender = self._context.Pipe(duplex=False)
            arguments = self._folder, self._options, self._target, sender
            process = self._context.Process(target=_serve, args=arguments)
            with sender:
                try:
                    process.start()
                except OSError as e:  # of memory or processes, say
                    if first:
                        raise
                    self._ended(place, str(e))
                    continue
            place.process = process
            if self._stopping:  # a signal has come before the process had its place
                process.terminate()

    def _wait(self, signals: int) -> None:
        """Waits for a signal, a process that serves or ends, or the time of the next attempt."""
        events: list[Any] = [signals]
        due = math.inf
        for place in self._places:
            if place.process is None:
                due = min(due, place.due)
                continue
            events.append(place.process.sentinel)
            if place.ready is not None:
                events.append(place.ready)
        wait(events, None if due == math.inf else max(0.0, due - time.monotonic()))

    def _look(self, first: bool) -> None:
        """Finds the processes that serve now, and the processes that have ended."""
        for place in self._places:
            if place.ready is not None and place.ready.poll():
                with contextlib.suppress(EOFError):  # it has ended instead
                    place.ready.recv_bytes()
                    place.since = time.monotonic()
                place.ready.close()
                place.ready = None
            if place.process is None or place.process.is_alive() or self._stopping:
                continue
            status = place.process.exitcode
            if first and place.since is None:  # another one would end, too
                raise OSError(f"a process ended with status {status} before it served")
            self._ended(place, f"status {status}")
        self._count()
        if all(p.process is None and p.in_vain for p in self._places):
            raise OSError("no process serves, and none could be replaced; the log has the causes")

    def _ended(self, place: _Place, cause: str) -> None:
        """Plans the next attempt in a place."""
        now, served = time.monotonic(), place.since is not None
        steady = place.since is not None and now - place.since >= STEADY_SECONDS
        place.failures = 1 if steady else place.failures + 1
        delay = delay_of(place.failures)
        place.due = now + delay
        place.process, place.since, place.in_vain = None, None, not served
        if place.ready is not None:
            place.ready.close()
            place.ready = None
        self._counts.ended(served)
        self._count()
        LOG.error(
            "a process ended with %s %s it served; it is replaced %s, %d of %d processes serve",
            *(cause, "after" if served else "before", f"in {delay:g} s" if delay else "now"),
            *(self._counts.serving, len(self._places)),
        )

    def _count(self) -> None:
        self._counts.serving = sum(p.since is not None for p in self._places)
        self._counts.write(Path(os.environ[SHARED_DIR]))

    def _stop(self) -> None:
        self._stopping = True
        for place in self._places:
            if place.process is not None:
                place.process.terminate()

    def _end(self) -> None:
        self._stop()
        for place in self._places:
            if place.process is None:
                continue
            place.process.join(self._options.grace + 5)
            if place.process.is_alive():
                place.process.kill()
                place.process.join()


def _serve(
    folder: Path,
    options: ServerOptions,
    target: Callable[[Path, ServerOptions, Callable[[], None]], None],
    ready: Any,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends this one
    target(folder, options, lambda: ready.send_bytes(b"ready"))


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
