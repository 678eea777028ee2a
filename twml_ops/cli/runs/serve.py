"""`twml-ops serve`: serves a scorer by REST and gRPC."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twml_ops.cli.errors import UserError


def serve_folder(folder: Path, processes: int = 1, **options: Any) -> None:
    """Serves until the process gets SIGTERM or SIGINT. It does not import TensorFlow.

    Args:
        folder: the folder of a scorer or of its versions.
        processes: number of processes that serve.
        **options: the fields of `twml_ops.serving.ServerOptions`.

    Raises:
        UserError: the packages of the extra are missing, an option is wrong, the folder has no
            version that can be read, or a port is in use.
    """
    try:
        from twml_ops.serving import Server, ServerOptions
    except ModuleNotFoundError as e:
        raise UserError(f'{e}: install the server by `pip install "twml_ops[serve]"`') from e
    _set_up_logging()
    try:
        if processes > 1:
            _serve_from_processes(folder, processes, ServerOptions(**options))
            return
        server = Server(folder, ServerOptions(**options))
        asyncio.run(_run(server, lambda: _print_started(server)))
        print("stopped", flush=True)
    except (OSError, ValueError) as e:
        raise UserError(str(e)) from e


def _set_up_logging() -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
    # It warns of each malformed request, which metrics count: anyone could fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def _serve_from_processes(folder: Path, processes: int, options: Any) -> None:
    from twml_ops.serving.processes import ServerProcesses

    if not options.poll:
        raise UserError("--processes needs --poll: each process looks for versions by itself")
    if not options.threads:
        cores = len(os.sched_getaffinity(0))
        options = dataclasses.replace(options, threads=max(1, cores // processes))

    def started(rest_port: int, grpc_port: int, health_port: int) -> None:
        print(
            f"serving {folder} from {processes} processes: REST on port {rest_port}, gRPC on port "
            f"{grpc_port}, health on port {health_port}",
            flush=True,
        )

    ServerProcesses(folder, options, processes, _serve_in_process).run(started)
    print("stopped", flush=True)


def _serve_in_process(folder: Path, options: Any, ready: Callable[[], None]) -> None:
    """Serves in one of several processes."""
    from twml_ops.serving import Server

    _set_up_logging()
    asyncio.run(_run(Server(folder, options), ready))


def _print_started(server: Any) -> None:
    model = server.model
    print(
        f"serving version {model.current.number} of {model.name}: REST on port "
        f"{server.rest_port}, gRPC on port {server.grpc_port}, health on port {server.health_port}",
        flush=True,
    )


async def _run(server: Any, started: Callable[[], None]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one ends the process
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)

    await server.run(stop, started)
