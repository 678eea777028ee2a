"""`twml-ops serve`: serves a scorer by REST and gRPC."""

from __future__ import annotations

import dataclasses
import enum
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from twml_ops.cli.options import Debug, HelpAll, advanced
from twml_ops.training.errors import UserError


class Storage(str, enum.Enum):
    """Where the large tables of a scorer are."""

    MAPPED = "mapped"
    MEMORY = "memory"
    FILE = "file"


_limit = advanced("Limits")
_table = advanced("Large tables")


def serve(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of a scorer, a link to one, or a folder with a subfolder for each version "
            "whose name is the number of the version.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the model. Default: the name of the folder.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    rest_port: Annotated[
        int, typer.Option(min=0, max=65535, help="HTTP port; 0: a free one.")
    ] = 8501,
    grpc_port: Annotated[
        int, typer.Option(min=0, max=65535, help="gRPC port; 0: a free one.")
    ] = 8500,
    health_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="HTTP port for health and metrics only, which answers even while the other ports "
            "are overloaded; 0: a free one.",
        ),
    ] = 0,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes that serve on the same ports. The other limits hold for each process.",
        ),
    ] = 1,
    threads: Annotated[
        int,
        typer.Option(min=0, help="Requests that are computed at the same time; 0: one per core."),
    ] = 0,
    row_threads: Annotated[
        int, _limit(min=1, help="Threads among which the rows of a request are divided.")
    ] = 1,
    queue: Annotated[
        int, _limit(min=0, help="Requests that may wait for a thread; further ones are refused.")
    ] = 128,
    max_connections: Annotated[
        int,
        _limit(
            min=1,
            help="Largest number of HTTP connections, of gRPC connections, and of gRPC calls. A "
            "further HTTP connection replaces the one that has waited longest for its client.",
        ),
    ] = 1024,
    max_bytes: Annotated[
        int,
        _limit(
            min=1,
            help="Largest size in bytes of a request, and of its decoded arrays.",
        ),
    ] = 16 << 20,
    max_rows: Annotated[int, _limit(min=1, help="Largest number of rows of a request.")] = 10_000,
    timeout: Annotated[
        float,
        _limit(min=1e-3, help="Seconds after which a request is answered with an error."),
    ] = 10.0,
    keep_alive: Annotated[
        float,
        _limit(
            min=1e-3, help="Seconds after which an HTTP connection without a request is closed."
        ),
    ] = 5.0,
    poll: Annotated[
        float,
        typer.Option(min=0, help="Seconds between checks for a new version; 0: only on request."),
    ] = 2.0,
    warmup: Annotated[
        Path | None,
        typer.Option(
            help="File with the body of a REST request that a version has to answer before it is "
            "served. Default: the file warmup.json of the version, or generated rows."
        ),
    ] = None,
    grace: Annotated[
        float, _limit(min=0, help="Seconds in which running requests may end after SIGTERM.")
    ] = 30.0,
    storage: Annotated[
        Storage,
        _table(
            help="Where large tables are. mapped: memory-mapped files. memory: memory of the "
            "process. file: files, with a cache of the most frequent rows."
        ),
    ] = Storage.MAPPED,
    cache_bytes: Annotated[
        int, _table(min=0, help="With --storage file: bytes of the cache of rows.")
    ] = 256 << 20,
    sums_cache_bytes: Annotated[
        int, _table(min=0, help="With --storage file: bytes of the cache of sums of rows.")
    ] = 0,
    direct: Annotated[
        bool, _table("--direct", help="With --storage file: bypass the page cache (O_DIRECT).")
    ] = False,
    queue_depth: Annotated[
        int,
        _table(min=1, max=4096, help="With --storage file: reads of a request at the same time."),
    ] = 64,
    debug: Debug = False,
    help_all: HelpAll = False,
) -> None:
    """Serves a scorer by the REST and gRPC interfaces of TensorFlow Serving, without TensorFlow.

    Loads new versions while requests run. SIGTERM and Ctrl-C end it after the running requests.
    """
    serve_folder(
        folder,
        name=name,
        host=host,
        rest_port=rest_port,
        grpc_port=grpc_port,
        health_port=health_port,
        processes=processes,
        threads=threads,
        row_threads=row_threads,
        queue=queue,
        max_connections=max_connections,
        max_bytes=max_bytes,
        max_rows=max_rows,
        timeout=timeout,
        keep_alive=keep_alive,
        poll=poll,
        warmup=warmup,
        grace=grace,
        storage=storage.value,
        cache_bytes=cache_bytes,
        sums_cache_bytes=sums_cache_bytes,
        direct=direct,
        queue_depth=queue_depth,
    )


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
    import asyncio

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
    import logging

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
    import asyncio

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
    import asyncio

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one ends the process
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)

    await server.run(stop, started)
