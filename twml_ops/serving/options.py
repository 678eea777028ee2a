"""The options of a server."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from twml_ops._scorer import Storage


@dataclass(frozen=True)
class ServerOptions:
    """The options of a `Server`.

    Attributes:
        name: name of the model in requests. Default: the name of the folder.
        host: address to listen on.
        rest_port: port of HTTP; 0 is a free one.
        grpc_port: port of gRPC; 0 is a free one.
        health_port: port of HTTP for health and metrics alone, which a thread of its own answers,
            whatever the other ports are flooded with; 0 is a free one.
        threads: number of requests that are computed at the same time; 0 is one for each core.
        row_threads: number of threads that share the rows of a request.
        queue: number of requests that wait for a thread. Further ones are refused.
        max_connections: number of HTTP connections, of gRPC connections, and of gRPC calls at a
            time. For a further HTTP connection, the one that has waited longest for its client is
            closed; further ones of gRPC are refused.
        max_bytes: largest size of a request, in bytes, and of the arrays that it is decoded to: all
            together, a JSON value counting as 8 bytes.
        max_rows: largest number of rows of a request.
        timeout: seconds after which a request is answered with an error. The headers of a request,
            its body and the reading of the answer may each take as long.
        keep_alive: seconds after which an HTTP connection without a request is closed.
        poll: seconds between two looks for a new version; 0: only when a client asks for it.
        warmup: file with the body of a REST request that is computed before a version is served.
            A file `warmup.json` in the folder of the version replaces it. Default: made-up rows.
        grace: seconds that running requests have to end when the server stops.
        share_ports: whether other processes may listen on the same ports (SO_REUSEPORT).
        storage: where large tables are: "mapped", "memory" or "file"; see `core.Scorer.load`, also
            for the options that follow, which are for "file".
        cache_bytes: memory for the rows that are used most. A version that replaces another one
            has a cache of its own, so that both take memory until the last request of the old one
            ends.
        sums_cache_bytes: memory for sums of rows by the list of their ids and values.
        direct: whether reads go past the page cache.
        queue_depth: number of reads of a request that run at the same time.

    Raises:
        ValueError: a value is out of its range.
    """

    name: str | None = None
    host: str = "127.0.0.1"
    rest_port: int = 8501
    grpc_port: int = 8500
    health_port: int = 0
    threads: int = 0
    row_threads: int = 1
    queue: int = 128
    max_connections: int = 1024
    max_bytes: int = 16 << 20
    max_rows: int = 10_000
    timeout: float = 10.0
    keep_alive: float = 5.0
    poll: float = 2.0
    warmup: Path | None = None
    grace: float = 30.0
    share_ports: bool = False
    storage: Storage = "mapped"
    cache_bytes: int = 256 << 20
    sums_cache_bytes: int = 0
    direct: bool = False
    queue_depth: int = 64

    def __post_init__(self) -> None:
        if self.name is not None and (not self.name or set(self.name) & set("/:?#%")):
            raise ValueError(f"name must be a text without any of /:?#%, got {self.name!r}")
        for field, least in (
            *(("rest_port", 0), ("grpc_port", 0), ("health_port", 0), ("threads", 0)),
            *(("row_threads", 1),),
            *(("queue", 0), ("max_connections", 1), ("max_bytes", 1), ("max_rows", 1)),
            *(("poll", 0), ("grace", 0)),
            *(("cache_bytes", 0), ("sums_cache_bytes", 0), ("queue_depth", 1)),
        ):
            value = getattr(self, field)
            if not value >= least:
                raise ValueError(f"{field} must be at least {least}, got {value}")
        for field in ("rest_port", "grpc_port", "health_port"):
            if getattr(self, field) > 65535:
                raise ValueError(f"{field} must be at most 65535, got {getattr(self, field)}")
        if self.storage not in ("mapped", "memory", "file"):
            raise ValueError(f"storage must be mapped, memory or file, got {self.storage!r}")
        if self.storage != "file" and (self.direct or self.sums_cache_bytes):
            raise ValueError("direct and sums_cache_bytes need the storage file")
        for field in ("timeout", "keep_alive"):
            if not 0 < getattr(self, field) < math.inf:
                raise ValueError(f"{field} must be positive, got {getattr(self, field)}")

    @property
    def workers(self) -> int:
        """The number of requests that are computed at the same time."""
        return self.threads or len(os.sched_getaffinity(0))
