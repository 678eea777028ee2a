"""A limit for calls that may never return."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from twml_ops._child import EXIT_LOST


class Watchdog:
    """Ends the process if a call takes longer than its limit.

    A call of MPI to a rank that died may block forever, and nothing can interrupt it.

    Args:
        name: The name of this process in messages.
        on_expiry: Called with a message and the argument `leave` of the call that takes too long;
            it must not return. None: `end_process`.
    """

    def __init__(self, name: str, on_expiry: Callable[[str, bool], None] | None = None) -> None:
        self._name, self._on_expiry = name, on_expiry or end_process
        self._condition = threading.Condition()
        self._calls: list[tuple[float, float, str, bool]] = []  # deadline, limit, name
        self._is_open, self._is_idle = True, False
        self._thread = threading.Thread(target=self._watch, name="peers-watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def limit(self, seconds: float, call: str, leave: bool = True) -> Iterator[None]:
        """Bounds the time that a block may take.

        Args:
            seconds: The limit.
            call: The name of the call, for the message.
            leave: See `end_process`.
        """
        entry = (time.monotonic() + seconds, seconds, call, leave)
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
        # The end of a block wakes no thread: the watchdog finds out at the deadline that it
        # expected.
        with self._condition:
            while self._is_open:
                if not self._calls:
                    self._is_idle = True
                    self._condition.wait()
                    self._is_idle = False
                    continue
                deadline, limit, call, leave = min(self._calls)
                left = deadline - time.monotonic()
                if left > 0:
                    self._condition.wait(min(left, limit))
                else:
                    message = f"[{self._name}] {call} took longer than {limit:g} s"
                    self._on_expiry(message, leave)
                    return


def end_process(message: str, leave: bool) -> None:
    """Ends this process, in which a call of MPI or the training has failed.

    Args:
        message: For the error output.
        leave: Whether the other ranks can go on without this one. If so, the process kills itself,
            which Open MPI reports to the others at once. Otherwise it ends with `EXIT_LOST`, after
            which the launcher restarts the job: another rank does not answer but has not died.
    """
    print(f"{message}: the process ends", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if leave:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(EXIT_LOST)
