"""A limit for calls that may never return."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from twml_ops._child import EXIT_LOST


class Watchdog:
    """Ends the process if a call takes longer than its limit.

    A call of MPI to a rank that died may block forever, and nothing can interrupt it. Open MPI
    reports the end of this process to the other ranks, and the launcher restarts the job.

    Args:
        name: The name of this process in messages.
        on_expiry: Called with the name of a call that takes too long; it must not return. None:
            a message, and the end of the process with the status `EXIT_LOST`.
    """

    def __init__(self, name: str, on_expiry: Callable[[str], None] | None = None) -> None:
        self._name, self._on_expiry = name, on_expiry or self._exit
        self._condition = threading.Condition()
        self._calls: list[tuple[float, float, str]] = []  # deadline, limit, name
        self._is_open, self._is_idle = True, False
        self._thread = threading.Thread(target=self._watch, name="peers-watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def limit(self, seconds: float, call: str) -> Iterator[None]:
        """Bounds the time that a block may take.

        Args:
            seconds: The limit.
            call: The name of the call, for the message.
        """
        entry = (time.monotonic() + seconds, seconds, call)
        with self._condition:
            self._calls.append(entry)
            if self._is_idle:
                self._condition.notify()
        try:
            yield
        finally:
            with self._condition:
                self._calls.remove(entry)

    def close(self) -> None:
        """Ends the thread."""
        with self._condition:
            self._is_open = False
            self._condition.notify()
        self._thread.join()

    def _watch(self) -> None:
        # A block that ends wakes nobody: the thread finds out at the deadline that it expected.
        with self._condition:
            while self._is_open:
                if not self._calls:
                    self._is_idle = True
                    self._condition.wait()
                    self._is_idle = False
                    continue
                deadline, limit, call = min(self._calls)
                left = deadline - time.monotonic()
                if left > 0:
                    self._condition.wait(min(left, limit))
                else:
                    self._on_expiry(f"{call} took longer than {limit:g} s")
                    return

    def _exit(self, message: str) -> None:
        print(f"[{self._name}] {message}: the process ends", file=sys.stderr, flush=True)
        os._exit(EXIT_LOST)
