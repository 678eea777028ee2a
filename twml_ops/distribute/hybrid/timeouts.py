"""Calls that may wait for other processes: they end, or end in a `ClusterError`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid.cluster import ClusterError
from twml_ops.distribute.launch import EXIT_LOST

_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
    tf.errors.OutOfRangeError,  # a queue that was closed
)


def run_with_timeout(timeout: float, what: str, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, run in a thread of its own, since TensorFlow's waits have no limit.

    Raises:
        ClusterError: it did not end within `timeout` seconds, or failed since a process it needs
            is gone.
    """
    result: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function(*args))
        except BaseException as e:
            error.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise ClusterError(
            f"{what} did not end within {timeout:g} s: a server or another worker does not "
            "answer; this process must be started anew"
        )
    if not error:
        return result[0]
    e = error[0]
    lost_context = isinstance(e, tf.errors.InvalidArgumentError) and "context_id" in str(e)
    if isinstance(e, _LOST) or lost_context:
        first = str(e).strip().splitlines()[0][:300]
        raise ClusterError(f"{what}: {type(e).__name__}: {first}") from e
    raise e


@contextlib.contextmanager
def exit_on_cluster_error() -> Iterator[None]:
    """Around a program's training: ends the process at a `ClusterError`, so that it is restarted.

    Exit status `EXIT_LOST` tells `twml-ops launch` (and any status Kubernetes) to start it anew.
    The process ends at once: a thread may still wait for a server that is gone.
    """
    try:
        yield
    except ClusterError as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(EXIT_LOST)
