"""The server: its start, its threads, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any

from twml_ops.serving.connections import ConnectionLimits
from twml_ops.serving.listeners import (
    HEALTH_CONNECTIONS,
    HealthThread,
    HttpServer,
    connections_within_files,
    listen,
)
from twml_ops.serving.metrics import Metrics
from twml_ops.serving.model import Model
from twml_ops.serving.options import ServerOptions
from twml_ops.serving.rest import application, health_application
from twml_ops.serving.rpc import GrpcServer
from twml_ops.serving.service import Service

LOG = logging.getLogger(__name__)


class Server:
    """Serves a scorer, or the newest of its numbered versions, by REST and gRPC.

    As a context manager it serves from a thread until the block ends. `run` serves on the event
    loop of the caller.

    Args:
        folder: a folder that `export.to_scorer` wrote, a symbolic link to one, or a folder whose
            subfolders with numbers as names are such folders.
        options: its options; None: the default ones.

    Raises:
        FileNotFoundError: there is no such folder, or it has no complete version.
        ValueError: no version can be read.
    """

    def __init__(
        self, folder: str | os.PathLike[str], options: ServerOptions | None = None
    ) -> None:
        options = options or ServerOptions()
        self._metrics = Metrics()
        self.model = Model(Path(folder), options, self._count_load)
        self._service = Service(self.model, options, self._metrics)
        self._options = options
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self.rest_port = self.grpc_port = self.health_port = 0
        self.model.load_first()

    async def run(self, stop: asyncio.Event, started: Any = lambda: None) -> None:
        """Serves until an event is set, and then ends the running requests.

        Args:
            stop: ends the server.
            started: called without arguments when the ports are open.

        Raises:
            OSError: a port cannot be used.
        """
        options, service = self._options, self._service
        connections = connections_within_files(options.max_connections)
        with contextlib.ExitStack() as stack:
            listener, health = (
                stack.enter_context(listen(options.host, port, options.share_ports))
                for port in (options.rest_port, options.health_port)
            )
            self.rest_port, self.health_port = (s.getsockname()[1] for s in (listener, health))
            rest = HttpServer(application(service), options, self._limits(connections))
            self._rest = rest
            grpc = GrpcServer(service, connections)
            self.grpc_port = await grpc.start()
            limits = self._limits(HEALTH_CONNECTIONS)
            checks = HttpServer(health_application(service), options, limits)
            stack.enter_context(HealthThread(checks, health))
            serving = asyncio.create_task(rest.serve([listener]))
            polling = asyncio.create_task(self._poll())
            stopping = asyncio.create_task(stop.wait())
            try:
                started()
                await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                service.stopping = True
                rest.should_exit = True
                polling.cancel()
                stopping.cancel()
                try:
                    await asyncio.gather(grpc.stop(options.grace), serving)
                finally:
                    service.close()

    def _limits(self, connections: int) -> ConnectionLimits:
        options = self._options
        return ConnectionLimits(
            connections,
            options.max_bytes,
            options.timeout,
            options.keep_alive,
            self._metrics.count_ended,
        )

    def _count_load(self, ok: bool) -> None:
        self._metrics.count_load(ok)
        if ok:
            current = self.model.current
            self._metrics.set_version(self.model.name, current.number, current.step)

    async def _poll(self) -> None:
        while self._options.poll:
            await asyncio.sleep(self._options.poll)
            try:
                await self._service.refresh()
            except Exception:
                LOG.exception("looking for versions failed")

    def __enter__(self) -> Server:
        ready = threading.Event()

        async def run() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await self.run(self._stop, ready.set)

        def target() -> None:
            try:
                asyncio.run(run())
            except BaseException as e:
                self._error = e
            finally:
                ready.set()

        self._thread = threading.Thread(target=target, name="server")
        self._thread.start()
        ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends a server that was started as a context manager, after its running requests.

        Raises:
            Exception: the server has failed in the meantime.
        """
        assert self._thread is not None
        assert self._loop is not None
        assert self._stop is not None
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error
