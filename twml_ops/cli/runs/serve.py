"""`twml-ops serve`: serves a scorer by REST and gRPC."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any

from twml_ops.cli.errors import UserError


def serve_folder(folder: Path, **options: Any) -> None:
    """Serves until the process gets SIGTERM or SIGINT. It does not import TensorFlow.

    Args:
        folder: the folder of a scorer or of its versions.
        **options: those of `twml_ops.serving.ServerOptions`.

    Raises:
        UserError: the packages of the extra are missing, an option is wrong, the folder has no
            version that can be read, or a port is in use.
    """
    try:
        from twml_ops.serving import Server, ServerOptions
    except ModuleNotFoundError as e:
        raise UserError(f'{e}: install the server by `pip install "twml_ops[serve]"`') from e
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        server = Server(folder, ServerOptions(**options))
        asyncio.run(_run(server))
    except (OSError, ValueError) as e:
        raise UserError(str(e)) from e


async def _run(server: Any) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one ends the process
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)

    def started() -> None:
        model = server.model
        print(
            f"serving version {model.current.number} of {model.name}: REST on port "
            f"{server.rest_port}, gRPC on port {server.grpc_port}",
            flush=True,
        )

    await server.run(stop, started)
    print("stopped", flush=True)
