"""What the REST and the gRPC interface share: limits, threads, deadlines and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from twml_ops.serving.errors import DeadlineExceeded, Overloaded, RequestError
from twml_ops.serving.metrics import Metrics
from twml_ops.serving.model import Model
from twml_ops.serving.options import ServerOptions

LOG = logging.getLogger(__name__)
SHORT_BYTES = 16 << 10
"""Requests up to this size take less time than handing them to a thread."""
LONG_BYTES = 64 << 10
"""Requests beyond this size share a bound of memory."""
MAX_HELD = 32
"""The bound, as a multiple of `max_bytes`."""
T = TypeVar("T")


class Service:
    """A model and the means to answer requests for it.

    Args:
        model: the model.
        options: the options of the server.
        metrics: the metrics of the server.
    """

    def __init__(self, model: Model, options: ServerOptions, metrics: Metrics) -> None:
        self.model, self.options, self.metrics = model, options, metrics
        self.stopping = False
        self._admission = Admission(options.workers, options.queue)
        self._threads = ThreadPoolExecutor(options.workers, "predict")
        self._loader = ThreadPoolExecutor(1, "load")
        self._next_look: asyncio.Task[bool] | None = None  # which has not begun
        self._held = 0

    def hold(self, size: int) -> None:
        """Counts bytes of requests in memory; see `Held`.

        Args:
            size: how many more, or less.

        Raises:
            Overloaded: there would be too many.
        """
        most = MAX_HELD * self.options.max_bytes
        if size > 0 and self._held + size > most:
            raise Overloaded(
                f"the server is overloaded: requests of more than {LONG_BYTES} bytes have {most} "
                "bytes already"
            )
        self._held += size

    async def run(self, work: Callable[[], T], size: int, deadline: float) -> T:
        """Does the work of a request when there is a free slot.

        Args:
            work: decodes the request, computes it, and encodes the answer.
            size: bytes of the request, or of the arrays that it is decoded to if they are more.
                Short requests run on the thread of the event loop.
            deadline: the time, of `time.monotonic`, at which the client gets an error.

        Raises:
            RequestError: the work raised it, too many requests wait, or time is over.
        """
        await self._admission.enter(deadline - time.monotonic())
        try:
            return await self._run_admitted(work, size, deadline)
        except RequestError:
            raise
        except Exception as e:
            LOG.exception("a request failed")
            raise RequestError("internal error of the server; its log has the cause") from e
        finally:
            version = self.model.current
            if version.categories is not None:
                self.metrics.count_categories(self.model.name, version.categories.taken())
            if self.options.storage == "file":
                self.metrics.count_tables(self.model.name, version, version.statistics)

    async def _run_admitted(self, work: Callable[[], T], size: int, deadline: float) -> T:
        # Tables in files make a thread wait, which must not be that of the event loop.
        if size <= SHORT_BYTES and self.options.storage != "file":
            try:
                return work()
            finally:
                self._admission.leave()
        loop = asyncio.get_running_loop()
        try:
            running = self._threads.submit(work)
        except BaseException:
            self._admission.leave()
            raise
        # The slot is taken until the thread is free, whether or not the client still waits.
        running.add_done_callback(lambda _: loop.call_soon_threadsafe(self._admission.leave))
        return await _within(running, deadline)

    async def refresh(self) -> bool:
        """Looks for versions on a thread of its own; see `Model.refresh`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._loader, self.model.refresh)

    async def reload(self) -> bool:
        """Looks for versions and tries damaged ones again; callers that wait share the result."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look())
        return await asyncio.shield(self._next_look)

    async def _look(self) -> bool:
        def look() -> bool:
            self._next_look = None  # calls from now on need a later look
            return self.model.refresh(retry=True)

        return await asyncio.get_running_loop().run_in_executor(self._loader, look)

    def close(self) -> None:
        """Waits for the threads."""
        self._threads.shutdown()
        self._loader.shutdown()


class Held:
    """The memory of a request during a block, from its first byte to its answer.

    Args:
        service: that answers it.
    """

    __slots__ = ("_counted", "_service")

    def __init__(self, service: Service) -> None:
        self._service, self._counted = service, 0

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        if self._counted:
            self._service.hold(-self._counted)

    def grow(self, size: int) -> None:
        """Counts the bytes of a request that is not short.

        Args:
            size: the number of bytes that have arrived.

        Raises:
            Overloaded: all such requests together have too many.
        """
        if size > LONG_BYTES:
            self._service.hold(size - self._counted)
            self._counted = size


async def _within(running: Future[T], deadline: float) -> T:
    waiting = asyncio.wrap_future(running)
    waiting.add_done_callback(lambda f: f.cancelled() or f.exception())  # also if nobody waits
    done, _ = await asyncio.wait({waiting}, timeout=max(0.0, deadline - time.monotonic()))
    if not done:
        raise DeadlineExceeded("the request took too long")
    return waiting.result()


class Admission:
    """Slots for requests, given in the order of arrival. Used by the thread of the event loop.

    Args:
        slots: number of requests that are computed at the same time.
        queue: number of requests that wait for a slot.
    """

    def __init__(self, slots: int, queue: int) -> None:
        self._free, self._queue = slots, queue
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, timeout: float) -> None:
        """Takes a slot.

        Args:
            timeout: seconds to wait.

        Raises:
            Overloaded: too many requests wait already.
            DeadlineExceeded: there was no slot in time.
        """
        if self._free:
            self._free -= 1
            return
        if len(self._waiting) >= self._queue:
            raise Overloaded(f"the server is overloaded: {self._queue} requests wait already")
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(timeout, self._expire, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:  # the slot came meanwhile
                self.leave()
            raise
        finally:
            timer.cancel()

    def leave(self) -> None:
        """Gives a slot back, to the request that has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _expire(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._waiting.remove(turn)
            turn.set_exception(DeadlineExceeded("the request waited too long for a free thread"))
