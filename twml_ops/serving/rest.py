"""The REST interface: that of TensorFlow Serving, health, metrics, and reloading."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from twml_ops.serving.errors import (
    MAX_MESSAGE,
    DeadlineExceeded,
    NotFound,
    RequestError,
    TooLarge,
    UnsupportedEncoding,
    shortened,
)
from twml_ops.serving.service import SHORT_BYTES, Held, Service
from twml_ops.serving.status import metadata_json, status_json
from twml_ops.serving.tensors import check_bytes
from twml_ops.serving.version import Version, read_json

_VALUE_BYTES = 8
_FEW_BYTES = SHORT_BYTES // 2  # a shorter text has few values


def application(service: Service) -> Starlette:
    """The ASGI application of a service."""
    rest = _Rest(service)
    model = "/v1/models/{name}"
    version = model + "/versions/{version}"
    routes = [
        Route(model + ":predict", rest.predict, methods=["POST"]),
        Route(version + ":predict", rest.predict, methods=["POST"]),
        Route(model + "/metadata", rest.metadata),
        Route(version + "/metadata", rest.metadata),
        Route(model + ":reload", rest.reload, methods=["POST"]),
        Route(version, rest.status),
        Route(model, rest.status),
    ]
    return _starlette([*routes, *_health(rest)])


def health_application(service: Service) -> Starlette:
    """The ASGI application with health and metrics alone."""
    return _starlette(_health(_Rest(service)))


def _health(rest: _Rest) -> list[Route]:
    routes = {"/healthz": rest.healthz, "/readyz": rest.readyz, "/metrics": rest.metrics}
    return [Route(path, endpoint) for path, endpoint in routes.items()]


def _starlette(routes: list[Route]) -> Starlette:
    handlers: Any = {RequestError: _error, HTTPException: _http_error}
    handlers |= {ClientDisconnect: _gone, Exception: _unknown_error}
    made = Starlette(routes=routes, exception_handlers=handlers)
    made.router.redirect_slashes = False  # it would redirect to the host that a client names
    return made


class _Rest:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def predict(self, request: Request) -> Response:
        service = self._service
        deadline = time.monotonic() + service.options.timeout
        with service.metrics.call("rest") as call:
            version = self._version(request)
            with Held(service) as held:
                body = await _read_body(request, service.options.max_bytes, deadline, held)
                size = len(body)
                if size > _FEW_BYTES or size * _VALUE_BYTES > service.options.max_bytes:
                    size = max(size, decoded_bytes(body))
                    check_bytes("the body", size, service.options.max_bytes)

                def work() -> tuple[bytes, int]:
                    return _predict(version, body)

                text, call.rows = await service.run(work, size, deadline)
            return _json(text)

    async def status(self, request: Request) -> Response:
        number = _number(request)
        self._service.model.get(request.path_params["name"])
        return _json(status_json(self._service.model.states(number)))

    async def metadata(self, request: Request) -> Response:
        version = self._version(request)
        return _json(metadata_json(self._service.model.name, version))

    async def reload(self, request: Request) -> Response:
        self._service.model.get(request.path_params["name"])
        await self._service.reload()
        return _json(status_json(self._service.model.states()))

    async def healthz(self, request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def readyz(self, request: Request) -> Response:
        ready = not self._service.stopping
        return Response(
            "ready\n" if ready else "stopping\n", 200 if ready else 503, media_type="text/plain"
        )

    async def metrics(self, request: Request) -> Response:
        text = self._service.metrics.text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _version(self, request: Request) -> Version:
        return self._service.model.get(request.path_params["name"], _number(request))


def _number(request: Request) -> int | None:
    text = request.path_params.get("version")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise NotFound(f"the version must be a number, got {text!r}")
    return int(text)


def _predict(version: Version, body: bytes) -> tuple[bytes, int]:
    """The body of the answer, and the number of rows."""
    prediction = version.predict_json(read_json(body))
    outputs = prediction.outputs
    answer: Any
    if len(outputs) > 1:
        by_name = {name: array.tolist() for name, array in outputs.items()}
        answer = {"outputs": by_name}
        if prediction.by_row:
            rows = zip(*by_name.values(), strict=True)
            answer = {"predictions": [dict(zip(by_name, row, strict=True)) for row in rows]}
    else:
        answer = {"predictions" if prediction.by_row else "outputs": prediction.values}
    if all(np.isfinite(array).all() for array in outputs.values()):
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), prediction.rows
    # TensorFlow Serving writes NaN and Infinity, which are no JSON, and so does this module.
    return _dump(answer, default=np.ndarray.tolist), prediction.rows


def decoded_bytes(body: bytes) -> int:
    """The bytes of the arrays of a JSON text, at 8 bytes for each value, or slightly more.

    Counts what is between commas and after opening brackets, in texts as well, so that nothing has
    to be decoded.
    """
    return (1 + body.count(b",") + body.count(b"[") + body.count(b"{")) * _VALUE_BYTES


async def _read_body(request: Request, max_bytes: int, deadline: float, held: Held) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise UnsupportedEncoding(f"the body must not be compressed, got {encoding}")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:18]) > max_bytes:
        raise TooLarge(f"the body has {length} bytes, at most {max_bytes} are allowed")
    try:
        receiving = _receive(request, max_bytes, held)
        return await asyncio.wait_for(receiving, deadline - time.monotonic())
    except asyncio.TimeoutError as e:  # another class in Python 3.10
        raise DeadlineExceeded("the body did not arrive in time") from e


async def _receive(request: Request, max_bytes: int, held: Held) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise TooLarge(f"the body has more than {max_bytes} bytes")
        held.grow(size)
    return b"".join(parts)


def _dump(value: Any, default: Any = None) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=default).encode()


def _json(
    text: bytes | dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body = text if isinstance(text, bytes) else _dump(text)
    return Response(body, status, headers, media_type="application/json")


def _error(request: Request, error: RequestError) -> Response:
    return _json({"error": str(error)}, error.http)


def _http_error(request: Request, error: HTTPException) -> Response:
    where = shortened(f"{request.method} {request.scope['path']}", MAX_MESSAGE)
    return _json({"error": f"{where}: {error.detail}"}, error.status_code, error.headers)


def _gone(request: Request, error: ClientDisconnect) -> Response:
    return _json({"error": "the client has closed the connection"}, 499)  # nobody reads it


def _unknown_error(request: Request, error: Exception) -> Response:
    return _json({"error": "internal error of the server; its log has the cause"}, 500)
