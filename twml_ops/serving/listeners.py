"""The HTTP servers: that of the requests, and that of health and metrics on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from twml_ops.serving.connections import ConnectionLimits
from twml_ops.serving.options import ServerOptions

LOG = logging.getLogger(__name__)
HEALTH_CONNECTIONS = 64
"""Connections of the port of health and metrics."""
_OTHER_FILES = 256  # of a process: tables, libraries, metrics


class HttpServer(uvicorn.Server):
    """Uvicorn with bounds of connections, and without its signal handlers.

    Args:
        application: the ASGI application.
        options: the options of the server.
        limits: the bounds.
    """

    def __init__(self, application: Any, options: ServerOptions, limits: ConnectionLimits) -> None:
        protocol: Any = limits.protocol
        super().__init__(
            uvicorn.Config(
                application,
                http=protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.max_connections + 1,  # the first one that is refused
                timeout_keep_alive=limits.keep_alive,
                timeout_graceful_shutdown=max(1, round(options.grace)),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The caller has its own handlers."""
        yield


class HealthThread:
    """Answers on a port of its own while the block runs, from a thread with an event loop.

    Args:
        server: the server.
        listener: its socket.
    """

    def __init__(self, server: HttpServer, listener: socket.socket) -> None:
        self._server, self._listener = server, listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="health")
        self._ready = threading.Event()

    def __enter__(self) -> HealthThread:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            serving = asyncio.create_task(self._server.serve([self._listener]))
            stopping = asyncio.create_task(self._stop.wait())
        finally:
            self._ready.set()
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        for server in getattr(self._server, "servers", ()):  # none if it has not begun
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the connections end


def listen(host: str, port: int, shared: bool) -> socket.socket:
    """A socket that listens.

    Args:
        host: its address.
        port: its port; 0 is a free one.
        shared: whether other processes may listen on the port.

    Raises:
        OSError: the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol, asyncio sets TCP_NODELAY; answers would wait 40 ms otherwise.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as e:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {e}") from e
    return listener


def connections_within_files(wanted: int) -> int:
    """The number of connections of each interface for which there are file descriptors.

    Raises the soft limit of open files, up to the hard one. Without a descriptor for a new
    connection, none could be accepted on any port.

    Args:
        wanted: the number to have.
    """
    need = 2 * wanted + HEALTH_CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < need:
        soft = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < need:
            most = max(1, (soft - HEALTH_CONNECTIONS - _OTHER_FILES) // 2)
            LOG.warning(
                "max_connections is %d and not %d: the process may have %d open files",
                most,
                wanted,
                soft,
            )
            return most
    return wanted
