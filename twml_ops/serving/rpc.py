"""The gRPC interface: PredictionService and ModelService of TensorFlow Serving, and health."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from twml_ops.serving import messages
from twml_ops.serving.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestError,
    shortened,
)
from twml_ops.serving.inputs import FEATURES, Arrays, Input
from twml_ops.serving.service import SHORT_BYTES, Held, Service
from twml_ops.serving.status import signature_map
from twml_ops.serving.tensors import (
    Tensor,
    check_bytes,
    write_floats,
)
from twml_ops.serving.version import Version

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
MAX_STREAMS = 128
"""Calls of one connection at a time."""
MAX_WATCHERS = 64
"""Calls that watch the health."""
IDLE_SECONDS = 60
"""After as long, a connection without calls is closed, and a silent client is asked to answer."""
_SIGNATURES = "signature_def"
_TYPE_URL = "type.googleapis.com/"
_WIDTHS = {"float32": 4, "int64": 8, "bool": 1, "string": 8}  # of what the scorer gets, in bytes
_MAX_DETAILS = 6_000  # of the 8 KiB of a client's headers
_Method = Callable[[bytes, Any], Awaitable[bytes]]


class _Health(health.aio.HealthServicer):
    """The health service, whose watchers are bounded and do not keep a server from stopping."""

    _watchers = 0

    async def Watch(self, request: Any, context: Any) -> None:
        """Sends the status whenever it changes, until the server stops."""
        if self._watchers >= MAX_WATCHERS:
            await _abort(context, Overloaded(f"{MAX_WATCHERS} clients watch the health already"))
        self._watchers += 1
        try:
            with contextlib.suppress(_WatchEnded):
                await super().Watch(request, _Watcher(context))
        finally:
            self._watchers -= 1


class _WatchEnded(Exception):
    """The last status has been sent."""


class _Watcher:
    """The context of a watcher, which ends it after the status of a server that stops."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def write(self, response: Any) -> None:
        await self._context.write(response)
        if response.status == health_pb2.HealthCheckResponse.NOT_SERVING:
            raise _WatchEnded


class GrpcServer:
    """A server of gRPC, on the event loop that starts it.

    Args:
        service: what it serves.
        connections: number of connections, and of calls at a time.
    """

    def __init__(self, service: Service, connections: int) -> None:
        self._service, options = service, service.options
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", int(options.share_ports)),
                ("grpc.max_receive_message_length", options.max_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_allowed_incoming_connections", connections),
                ("grpc.max_concurrent_streams", min(connections, MAX_STREAMS)),
                # A compressed message could have any size.
                ("grpc.compression_enabled_algorithms_bitset", 1),
                # Silent connections: without settings, without calls, and whose client is gone.
                ("grpc.server_handshake_timeout_ms", math.ceil(options.timeout * 1000)),
                ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
                ("grpc.keepalive_time_ms", IDLE_SECONDS * 1000),
                ("grpc.keepalive_timeout_ms", math.ceil(options.timeout * 1000)),
            ],
            maximum_concurrent_rpcs=connections,
        )
        self._health = _Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        handlers = {
            PREDICTION_SERVICE: {"Predict": self._predict, "GetModelMetadata": self._metadata},
            MODEL_SERVICE: {"GetModelStatus": self._status},
        }
        for name, methods in handlers.items():
            # Messages stay bytes: they are parsed in the thread that computes the request. A call
            # with a stream of one message looks the same on the wire, and gets a deadline for it.
            handled = {
                m: grpc.stream_unary_rpc_method_handler(self._receiver(f))
                for m, f in methods.items()
            }
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(name, handled),)
            )

    async def start(self) -> int:
        """Listens; returns the port.

        Raises:
            OSError: the port cannot be used.
        """
        options = self._service.options
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{host}:{options.grpc_port}"
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as e:
            raise OSError(f"cannot listen on {address}: {e}") from e
        await self._server.start()
        for name in ("", PREDICTION_SERVICE, MODEL_SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self, grace: float) -> None:
        """Takes no further requests, and waits for the ones that run.

        Args:
            grace: seconds to wait.
        """
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)

    def _receiver(self, answer: _Method) -> Callable[[object, Any], Awaitable[bytes]]:
        """The handler that waits for the message of a call, and answers it."""

        async def receive(messages: object, context: Any) -> bytes:
            task, late = asyncio.current_task(), []
            assert task is not None

            def end() -> None:
                late.append(True)
                task.cancel()

            # `asyncio.wait_for` takes as long as scoring a row.
            timer = asyncio.get_running_loop().call_later(self._service.options.timeout, end)
            try:
                data = await context.read()
            except asyncio.CancelledError:
                if not late:  # the client has left
                    raise
                text = "the message did not arrive in time"
                return await _abort(context, DeadlineExceeded(text))
            finally:
                timer.cancel()
            if not isinstance(data, bytes):
                return await _abort(context, InvalidRequest("the call has no message"))
            return await answer(data, context)

        return receive

    async def _predict(self, data: bytes, context: Any) -> bytes:
        service = self._service
        remaining = context.time_remaining()
        timeout = service.options.timeout if remaining is None else remaining
        deadline = time.monotonic() + min(timeout, service.options.timeout)
        try:
            with service.metrics.call("grpc") as call, Held(service) as held:
                held.grow(len(data))
                size, parsed = len(data), None
                if size <= SHORT_BYTES:  # it may declare large arrays
                    parsed = _parse_tensors(service, data)
                    size = max(size, sum(t.bytes() for t in parsed.tensors.values()))

                def work() -> tuple[bytes, int]:
                    return _predict(service, parsed or _parse_tensors(service, data))

                made, call.rows = await service.run(work, size, deadline)
            return made
        except RequestError as e:
            return await _abort(context, e)

    async def _metadata(self, data: bytes, context: Any) -> bytes:
        async def answer() -> Any:
            request = _parse(messages.GetModelMetadataRequest, data)
            if unknown := set(request.metadata_field) - {_SIGNATURES}:
                raise InvalidRequest(f"metadata_field must be signature_def, got {sorted(unknown)}")
            if not request.metadata_field:
                raise InvalidRequest("metadata_field must have signature_def")
            version = _version(service=self._service, spec=request.model_spec)
            made = messages.GetModelMetadataResponse()
            _write_spec(made.model_spec, self._service.model.name, version.number)
            signatures = signature_map(version)
            value = made.metadata[_SIGNATURES]
            value.type_url = _TYPE_URL + signatures.DESCRIPTOR.full_name
            value.value = signatures.SerializeToString()
            return made

        return await _answered(context, answer)

    async def _status(self, data: bytes, context: Any) -> bytes:
        async def answer() -> Any:
            spec = _parse(messages.GetModelStatusRequest, data).model_spec
            self._service.model.get(spec.name)
            number = spec.version.value if spec.HasField("version") else None
            made = messages.GetModelStatusResponse()
            for state in self._service.model.states(number):
                status = made.model_version_status.add(version=state.number)
                status.state = type(status).State.Value(state.name)
                status.status.error_code = state.error_code
                status.status.error_message = state.error_message
            return made

        return await _answered(context, answer)


async def _answered(context: Any, answer: Callable[[], Awaitable[Any]]) -> bytes:
    try:
        return (await answer()).SerializeToString()
    except RequestError as e:
        return await _abort(context, e)


async def _abort(context: Any, error: RequestError) -> bytes:
    text = str(error)
    if not text.isascii() or len(text) > _MAX_DETAILS:  # a byte may take three in a header
        text = shortened(text, _MAX_DETAILS // 12)
    await context.abort(error.grpc, text)
    raise AssertionError  # abort raises


def _parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as e:
        raise InvalidRequest(f"the message is no {kind.DESCRIPTOR.full_name}: {e}") from e


def _version(service: Service, spec: Any) -> Version:
    if spec.version_label:
        raise NotFound(f"there is no version with the label {spec.version_label!r}")
    return service.model.get(spec.name, spec.version.value if spec.HasField("version") else None)


def _write_spec(spec: Any, name: str, number: int, signature: str = "") -> None:
    spec.name, spec.signature_name = name, signature
    spec.version.value = number


class _Parsed(NamedTuple):
    """A request with names that the model has, and tensors that have a shape and a type."""

    request: Any
    version: Version
    known: dict[str, Input]
    tensors: dict[str, Tensor]


def _parse_tensors(service: Service, data: bytes) -> _Parsed:
    request = _parse(messages.PredictRequest, data)
    spec = request.model_spec
    version = _version(service, spec)
    known = version.signatures.find(request.inputs.keys(), spec.signature_name)
    tensors = {name: Tensor(name, message) for name, message in request.inputs.items()}
    return _Parsed(request, version, known, tensors)


def _arrays(known: dict[str, Input], tensors: dict[str, Tensor], max_bytes: int) -> Arrays:
    """The arrays of tensors whose names are known; kinds and sizes are checked before contents."""
    size = 0
    for name, tensor in tensors.items():
        if tensor.is_text and known[name].dtype != "string":
            raise InvalidRequest(f"input {name!r} must hold numbers, got texts")
        size += tensor.bytes(_WIDTHS[known[name].dtype])
    check_bytes("the request", size, max_bytes)
    return {name: tensor.array() for name, tensor in tensors.items()}


def _predict(service: Service, parsed: _Parsed) -> tuple[bytes, int]:
    """The message of the answer, and the number of rows."""
    request, version, known, tensors = parsed
    spec = request.model_spec
    wanted = list(request.output_filter) or version.output_names
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(version.output_names):
        raise InvalidRequest(
            f"output_filter must have names of {version.output_names}, each once, got {wanted}"
        )
    arrays = _arrays(known, tensors, service.options.max_bytes)
    prediction = version.predict(known, arrays)
    made = messages.PredictResponse()
    for output in wanted:
        write_floats(prediction.outputs[output], made.outputs[output])
    _write_spec(made.model_spec, spec.name, version.number, spec.signature_name or FEATURES)
    return made.SerializeToString(), prediction.rows
