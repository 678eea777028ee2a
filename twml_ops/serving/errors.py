"""The errors of requests, with their codes in HTTP and gRPC."""

from __future__ import annotations

from typing import ClassVar

import grpc

MAX_MESSAGE = 2_000
"""Most characters of a message: it may quote the request, which may be large."""


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        message: for the client; only its begin is sent if it is long.
    """

    http: ClassVar[int] = 500
    grpc: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message, MAX_MESSAGE))


class InvalidRequest(RequestError):
    """The request is malformed, or does not fit the model."""

    http = 400
    grpc = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(RequestError):
    """There is no such model or version."""

    http = 404
    grpc = grpc.StatusCode.NOT_FOUND


class TooLarge(RequestError):
    """The request has more bytes or rows than the server takes."""

    http = 413
    grpc = grpc.StatusCode.INVALID_ARGUMENT  # RESOURCE_EXHAUSTED would ask for another try


class UnsupportedEncoding(RequestError):
    """The body is compressed."""

    http = 415


class Overloaded(RequestError):
    """Too many requests wait already."""

    http = 503
    grpc = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(RequestError):
    """The time for the request has passed."""

    http = 504
    grpc = grpc.StatusCode.DEADLINE_EXCEEDED


def shortened(text: str, most: int) -> str:
    """The text, or its begin and the number of its characters."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
