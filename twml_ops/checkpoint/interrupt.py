"""Lets Ctrl-C and SIGTERM wait for the end of a step."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(KeyboardInterrupt):
    """Training has ended because of a signal, after a checkpoint was written."""


class Interrupt:
    """Whether a signal has asked for the end of training.

    Attributes:
        requested: whether it has.
    """

    requested = False


@contextlib.contextmanager
def deferred_interrupt(enabled: bool = True) -> Iterator[Interrupt]:
    """A context manager in which the first SIGINT or SIGTERM sets a flag; a second acts as usual.

    In another thread than the main one, where Python handles no signals, it does nothing.

    Args:
        enabled: whether to do anything.

    Yields:
        The flag.
    """
    interrupt = Interrupt()
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def request(number: int, frame: FrameType | None) -> None:
        interrupt.requested = True
        restore()

    for number in SIGNALS:
        signal.signal(number, request)
    try:
        yield interrupt
    finally:
        restore()
