"""What the REST and the gRPC interface share: limits, threads, deadlines and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from twml_ops.serving.admission import Admission
from twml_ops.serving.errors import DeadlineExceeded, RequestError
from twml_ops.serving.metrics import Metrics
from twml_ops.serving.model import Model
from twml_ops.serving.options import ServerOptions

LOG = logging.getLogger(__name__)
_SHORT_BYTES = 16 << 10  # such a body takes less time than handing it to a thread
T = TypeVar("T")


class Service:
    """A model and the means to answer requests for it.

    Args:
        model: the model.
        options: those of the server.
        metrics: those of the server.
    """

    def __init__(self, model: Model, options: ServerOptions, metrics: Metrics) -> None:
        self.model, self.options, self.metrics = model, options, metrics
        self.stopping = False
        self._admission = Admission(options.workers, options.queue)
        self._threads = ThreadPoolExecutor(options.workers, "predict")
        self._loader = ThreadPoolExecutor(1, "load")

    async def run(self, work: Callable[[], T], size: int, deadline: float) -> T:
        """Does the work of a request when there is a free slot.

        Args:
            work: decodes the request, computes it, and encodes the answer.
            size: bytes of the request. Short requests run on the thread of the event loop.
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
        if size <= _SHORT_BYTES and self.options.storage != "file":
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

    async def refresh(self, retry: bool = False) -> bool:
        """Looks for versions on a thread of its own; see `Model.refresh`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._loader, self.model.refresh, retry)

    def close(self) -> None:
        """Waits for the threads."""
        self._threads.shutdown()
        self._loader.shutdown()


async def _within(running: Future[T], deadline: float) -> T:
    waiting = asyncio.wrap_future(running)
    waiting.add_done_callback(lambda f: f.cancelled() or f.exception())  # also if nobody waits
    done, _ = await asyncio.wait({waiting}, timeout=max(0.0, deadline - time.monotonic()))
    if not done:
        raise DeadlineExceeded("the request took too long")
    return waiting.result()
