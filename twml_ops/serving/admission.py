"""Bounds the requests that are computed and the requests that wait."""

from __future__ import annotations

import asyncio
from collections import deque

from twml_ops.serving.errors import DeadlineExceeded, Overloaded


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
