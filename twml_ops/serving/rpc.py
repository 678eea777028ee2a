"""The gRPC interface: PredictionService and ModelService of TensorFlow Serving, and health."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from twml_ops.serving import messages
from twml_ops.serving.errors import InvalidRequest, NotFound, RequestError
from twml_ops.serving.inputs import FEATURES
from twml_ops.serving.service import Service
from twml_ops.serving.status import signature_map
from twml_ops.serving.tensors import array_of, write_floats
from twml_ops.serving.version import Version

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
_SIGNATURES = "signature_def"
_TYPE_URL = "type.googleapis.com/"


class _Health(health.aio.HealthServicer):
    """The health service, whose watchers do not keep a server from stopping."""

    async def Watch(self, request: Any, context: Any) -> None:
        """Sends the status whenever it changes, until the server stops."""
        with contextlib.suppress(_WatchEnded):
            await super().Watch(request, _Watcher(context))


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
    """

    def __init__(self, service: Service) -> None:
        self._service, options = service, service.options
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", int(options.share_ports)),
                ("grpc.max_receive_message_length", options.max_bytes),
                ("grpc.max_send_message_length", -1),
            ],
            maximum_concurrent_rpcs=options.max_connections,
        )
        self._health = _Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        handlers = {
            PREDICTION_SERVICE: {"Predict": self._predict, "GetModelMetadata": self._metadata},
            MODEL_SERVICE: {"GetModelStatus": self._status},
        }
        for name, methods in handlers.items():
            # Messages stay bytes: they are parsed in the thread that computes the request.
            handled = {m: grpc.unary_unary_rpc_method_handler(f) for m, f in methods.items()}
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
        """Takes no further requests, and waits for those that run.

        Args:
            grace: seconds to wait.
        """
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)

    async def _predict(self, data: bytes, context: Any) -> bytes:
        service = self._service
        remaining = context.time_remaining()
        timeout = service.options.timeout if remaining is None else remaining
        deadline = time.monotonic() + min(timeout, service.options.timeout)

        def work() -> tuple[bytes, int]:
            return _predict(service, data)

        try:
            with service.metrics.call("grpc") as call:
                made, call.rows = await service.run(work, len(data), deadline)
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
    await context.abort(error.grpc, str(error))
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


def _predict(service: Service, data: bytes) -> tuple[bytes, int]:
    """The message of the answer, and the number of rows."""
    request = _parse(messages.PredictRequest, data)
    spec = request.model_spec
    version = _version(service, spec)
    wanted = list(request.output_filter) or version.output_names
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(version.output_names):
        raise InvalidRequest(
            f"output_filter must have names of {version.output_names}, each once, got {wanted}"
        )
    limit = service.options.max_bytes
    arrays = {name: array_of(name, tensor, limit) for name, tensor in request.inputs.items()}
    prediction = version.predict_arrays(spec.signature_name, arrays)
    made = messages.PredictResponse()
    for output in wanted:
        write_floats(prediction.outputs[output], made.outputs[output])
    _write_spec(made.model_spec, spec.name, version.number, spec.signature_name or FEATURES)
    return made.SerializeToString(), prediction.rows
