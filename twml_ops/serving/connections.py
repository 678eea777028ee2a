"""HTTP connections with bounds that uvicorn does not have: of headers, time, and number."""

from __future__ import annotations

import asyncio
import http
import json
import math
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 << 10
"""Most bytes of the request line and the headers of a request, beside one read of the socket."""
MAX_PIPELINED = 16
"""Most requests that a client may send on a connection before it gets the answer to the first."""
BODY_OVERHEAD = 8
"""Most bytes of a body as it is sent (chunks, and after an error), as a multiple of its bound."""
REASONS = ("deadline", "evicted", "headers", "body", "pipelined", "malformed")
"""Why the server ends a connection: labels of a metric."""


class ConnectionLimits:
    """The bounds of the connections of a listener, and the connections that wait for their clients.

    When there are too many connections, the one that has waited longest for its client gives way,
    so that silent and slow clients cannot keep others out. If the server computes a request of
    each, the new one is refused.

    Args:
        max_connections: number of connections.
        max_bytes: largest size of a body.
        timeout: seconds for the headers of a request, and again for its body. A client that does
            not read any of an answer for as long is disconnected.
        keep_alive: seconds between two requests.
        on_end: called with one of `REASONS` when the server ends a connection.
    """

    def __init__(
        self,
        max_connections: int,
        max_bytes: int,
        timeout: float,
        keep_alive: float,
        on_end: Callable[[str], object],
    ) -> None:
        self.max_connections, self.timeout, self.keep_alive = max_connections, timeout, keep_alive
        self.max_body, self.on_end = BODY_OVERHEAD * max_bytes, on_end
        self.waiting: dict[Connection, None] = {}  # the longest first

    def protocol(self, *args: Any, **kwargs: Any) -> Connection:
        """Makes a connection; it is called by uvicorn."""
        made = Connection(*args, **kwargs)
        made.limits = self
        return made


class Connection(HttpToolsProtocol):
    """A connection of a client.

    At any time it either waits for its client until a deadline, or for the server without one.
    """

    limits: ConnectionLimits
    _timer: asyncio.TimerHandle | None = None
    _deadline = math.inf
    _receiving = False  # a part of a request has arrived, and not the whole
    _in_headers = False
    _header_bytes = 0
    _body_bytes = 0
    _messages = 0
    _unsent = 0
    _refusal: tuple[int, str] | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Admits the connection, in place of another one if there are too many."""
        super().connection_made(transport)
        limits = self.limits
        if len(self.connections) > limits.max_connections and limits.waiting:
            next(iter(limits.waiting))._evict()
        self._wait_for_client(limits.timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        super().connection_lost(exc)
        self._wait_for_server()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Parses bytes. A part of a request has a deadline for the rest."""
        if self._refused:
            return
        before = self._messages, self._in_headers
        super().data_received(data)
        if not self._receiving or self._refused:
            return
        if before != (self._messages, self._in_headers):
            # The application answers with an error when a body is late, and goes first.
            more = 0.0 if self._in_headers else self.limits.keep_alive
            if self._in_headers != self._computing:
                self._wait_for_client(self.limits.timeout + more)
        elif self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse("headers", 431, _too_large(self._header_bytes))
        else:
            self._body_bytes += len(data)
            if self._body_bytes > self.limits.max_body:
                self.limits.on_end("body")
                self._leave()
                self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._messages += 1
        self._receiving = self._in_headers = True
        self._header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header. Those after a chunked body are of no use."""
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Checks the headers before the application sees them."""
        self._in_headers, self._body_bytes = False, 0
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        if size > MAX_HEADER_BYTES:
            self._refusal = 431, _too_large(size)
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = 400, f"a client may send at most {MAX_PIPELINED} requests ahead"
        if self._refusal:
            raise ValueError(self._refusal[1])  # ends the parser
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        super().on_message_complete()
        self._receiving = False
        if self._computing:
            self._wait_for_server()
        else:  # the answer was an error, and the rest of the body is of no use
            self._wait_for_client(self.limits.keep_alive)

    def on_response_complete(self) -> None:
        """The answer has to be read by the client, and the next request to come."""
        super().on_response_complete()
        if self._computing or self._refused:
            return
        if not self._receiving or self._in_headers:
            # Uvicorn closes a connection after `keep_alive`, if the client has read the answer.
            self._wait_for_client(self.limits.timeout + self.limits.keep_alive)

    def pause_writing(self) -> None:
        """The client has to read."""
        super().pause_writing()
        self._wait_for_client(self.limits.timeout)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._computing and not self._receiving:
            self._wait_for_server()

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is malformed or beyond a bound."""
        status, text = self._refusal or (400, msg)
        reason = {431: "headers"}.get(status, "pipelined" if self._refusal else "malformed")
        self._refuse(reason, status, text)

    @property
    def _computing(self) -> bool:
        """Whether the server has to answer a request."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_client(self, seconds: float) -> None:
        loop, waiting = self.loop, self.limits.waiting
        self._deadline = loop.time() + seconds
        self._unsent = self.transport.get_write_buffer_size()
        waiting.pop(self, None)
        waiting[self] = None
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self._deadline, self._expire)

    def _wait_for_server(self) -> None:
        self._deadline = math.inf  # a timer that is set looks at the deadline when it fires
        self.limits.waiting.pop(self, None)

    def _expire(self) -> None:
        self._timer = None
        if self._deadline == math.inf:
            return
        if self._deadline > self.loop.time():
            self._timer = self.loop.call_at(self._deadline, self._expire)
            return
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent < self._unsent:  # the client reads, if slowly
            self._wait_for_client(self.limits.timeout)
        elif self._in_headers and not unsent and not self._refused:
            text = f"the headers did not arrive within {self.limits.timeout:g} s"
            self._refuse("deadline", 408, text)
        else:
            if not self._refused:
                self.limits.on_end("deadline")
            self._leave()
            self.transport.abort()

    def _evict(self) -> None:
        self.limits.on_end("evicted")
        self._leave()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _leave(self) -> None:
        self._wait_for_server()
        self.connections.discard(self)

    def _refuse(self, reason: str, status: int, text: str) -> None:
        """Answers with an error and reads no further requests."""
        self.limits.on_end(reason)
        self._refused = True
        if self._computing or self.pipeline:  # it would be taken for the answer to an earlier one
            self._leave()
            self.transport.abort()
            return
        body = json.dumps({"error": text}).encode()
        line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        headers = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{line}{headers}connection: close\r\n\r\n".encode() + body)
        # What the client still sends is read: a reset would take the answer from it.
        self.transport.write_eof()
        self._unset_keepalive_if_required()
        self._wait_for_client(self.limits.keep_alive)


def _too_large(size: int) -> str:
    return (
        f"the request line and the headers have {size} bytes or more, at most {MAX_HEADER_BYTES} "
        "are allowed"
    )
