"""Remote calls with a timeout, and ending a process whose cluster has failed."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid.cluster import ClusterError
from twml_ops.distribute.hybrid.gradient_queues import OTHER_STEP
from twml_ops.distribute.launch import EXIT_LOST

# What TensorFlow raises where another process has ended, or has restarted without its state.
_CONNECTION_ERRORS = (
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


def run_with_timeout(
    timeout: float, description: str, function: Callable[..., Any], *args: Any
) -> Any:
    """Calls a function in a thread of its own, since TensorFlow's remote calls have no timeout.

    Args:
        timeout: Limit in seconds.
        description: What the function does, for the error message.
        function: The function to call.
        *args: Its arguments.

    Returns:
        What the function returns.

    Raises:
        ClusterError: The function has not returned within `timeout` seconds, or failed because a
            process that it needs has ended. All other exceptions of the function are raised as
            they are.
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
            f"{description} has not ended within {timeout:g} s: a server or another worker does "
            "not respond; this process must be restarted"
        )
    if not error:
        return result[0]
    e = error[0]
    lost = isinstance(e, tf.errors.InvalidArgumentError) and any(
        text in str(e) for text in ("context_id", OTHER_STEP)
    )
    if isinstance(e, _CONNECTION_ERRORS) or lost:
        text = str(e).strip()
        first_line = OTHER_STEP if OTHER_STEP in text else text.splitlines()[0][:300]
        raise ClusterError(f"{description}: {type(e).__name__}: {first_line}") from e
    raise e


@contextlib.contextmanager
def exit_on_cluster_error() -> Iterator[None]:
    """Ends the process if a `ClusterError` is raised in the `with` block, so that it is restarted.

    The exit status is `twml_ops.distribute.launch.EXIT_LOST`, 75, with which `twml-ops launch`
    restarts a process; Kubernetes restarts it with any status. The process ends without cleaning
    up, since one of its threads may still wait for a server that is gone.

    Yields:
        Nothing.
    """
    try:
        yield
    except ClusterError as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(EXIT_LOST)
