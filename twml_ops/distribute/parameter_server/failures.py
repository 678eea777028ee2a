"""What happens when a server or a worker of the cluster dies.

1. The other processes notice: `run_with_timeout` turns the errors and the silence of a process into
   a `ClusterError`.
2. They end as well: `exit_on_cluster_error` ends the process with the status `EXIT_LOST`. Only
   synchronous workers whose queues a restarted worker has closed stay, and join the new generation
   of queues (`synchronous_workers`).
3. A supervisor starts the processes again: `twml_ops.distribute.launch` on one machine, or a
   scheduler.
4. A process that starts, for the first time or again, joins the run by `join_run`. If all servers
   still have the values of the run, it goes on with them. Otherwise the chief restores the newest
   checkpoint (`restore`).
5. A worker goes on with the batch that follows (`WorkerBatches`) and with the same random numbers
   (`RandomStates`), so that a step which is repeated is the same step.

docs/design/parameter_server.md has the invariants.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import itertools
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import _keras
from twml_ops.distribute.launch import EXIT_LOST
from twml_ops.distribute.parameter_server.cluster import Cluster, ClusterError
from twml_ops.distribute.parameter_server.flat_batches import FlatBatch, FlatBatches
from twml_ops.distribute.parameter_server.state import RunState
from twml_ops.distribute.parameter_server.synchronous_workers import OTHER_STEP, GradientQueues
from twml_ops.distribute.parameter_server.worker_token import GUARD, REPLACED, WorkerReplacedError
from twml_ops.ops._tape import tf_variable

DatasetFn = Callable[..., tf.data.Dataset]
"""Called with a `tf.distribute.InputContext` and, if it has such an argument, `first_batch`."""

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
    tf.errors.OutOfRangeError,  # raised by a queue that was closed
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
        WorkerReplacedError: Another process has taken the place of this worker.
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
    if isinstance(e, tf.errors.InvalidArgumentError) and GUARD in str(e):
        raise WorkerReplacedError(REPLACED) from e
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

    TensorFlow tells of a server that has ended in whatever op waits for its queue next, also in ops
    of this process alone, such as one that reads a batch. So its errors that only lost connections
    have end the process as well.

    The exit status is `twml_ops.distribute.launch.EXIT_LOST`, 75, with which `twml-ops launch`
    restarts a process; Kubernetes restarts it with any status. The process ends without cleaning
    up, since one of its threads may still wait for a server that is gone. If another process has
    taken the place of this one, the status is 1, so that `twml-ops launch` does not restart it.

    Yields:
        Nothing.
    """
    try:
        yield
    except (ClusterError, WorkerReplacedError, tf.errors.OpError) as e:
        if isinstance(e, tf.errors.OpError) and not _is_lost_connection(e):
            raise
        print(f"error: {e}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1 if isinstance(e, WorkerReplacedError) else EXIT_LOST)


def _is_lost_connection(error: tf.errors.OpError) -> bool:
    """Whether an error of TensorFlow is one of lost connections, wherever it is raised."""
    lost = isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))
    return lost or "context_id" in str(error)


def join_run(
    cluster: Cluster,
    state: RunState,
    queues: GradientQueues | None,
    timeout: float,
    lock_checkpoints: Callable[[], None],
    fill_servers: Callable[[], None],
) -> None:
    """Joins the run, as a process that starts for the first time or again.

    The process takes its place from one that had it before. A worker waits until the chief has
    filled the servers. The chief goes on with the values that
    the servers have. It fills the servers if values are missing, if a synchronous leader has ended
    in the middle of an update, or if the values are of a run that has finished. It also fills them
    if it is the only worker, since the servers then lack the dense weights.

    Args:
        cluster: The cluster.
        state: The shared state of the run, whose tables have no shards yet.
        queues: The queues of a synchronous run of several workers; None for all other runs.
        timeout: Limit in seconds for waiting for the chief.
        lock_checkpoints: Called by a chief that goes on with the values of the servers.
        fill_servers: Creates the shards and restores or initializes all values.

    Raises:
        ClusterError: The chief has not filled the servers within `timeout` seconds.
    """
    own_queues = queues if cluster.job == "worker" else None
    state.worker_token.take()
    if not cluster.is_chief:
        state.wait_for_marker(timeout)
        state.create(state.read_layout())
    elif (
        state.shared_variables
        and state.marker()
        and not state.is_torn()
        and not state.has_finished(cluster.index)  # an earlier run, on the same servers
    ):
        lock_checkpoints()
        state.create(state.read_layout())
    else:
        # Servers that were not restarted have queues in which the other workers wait.
        torn = bool(state.shared_variables and state.marker())
        state.invalidate()
        fill_servers()
        state.reset_counters(new_generations=not torn)
        if own_queues is not None:  # before the others, whose first generation this one is
            own_queues.join()
        state.validate()
        return
    if own_queues is not None:
        own_queues.join()


class WorkerBatches:
    """The batches of a worker, in all iterations over its dataset, from any batch on.

    Args:
        dataset_fn: See `HybridTrainer.fit`.
        context: The number of this worker and the number of workers.
        flat: The kinds of batches that this process has seen.
    """

    def __init__(
        self, dataset_fn: DatasetFn, context: tf.distribute.InputContext, flat: FlatBatches
    ) -> None:
        self._dataset_fn, self._context, self._flat = dataset_fn, context, flat
        parameters = inspect.signature(dataset_fn).parameters
        self._can_seek = "first_batch" in parameters
        self._iterator: Iterator[FlatBatch] = iter(())
        self._kept: Any = None
        self._ahead: collections.deque[FlatBatch] = collections.deque()

    def peek(self, i: int) -> FlatBatch:
        """Returns the batch that is `i` batches after the current one."""
        while len(self._ahead) <= i:
            self._ahead.append(next(self._iterator))
        return self._ahead[i]

    def drop(self, count: int) -> None:
        """Goes on by `count` batches, which `peek` has returned."""
        for _ in range(count):
            self._ahead.popleft()

    def first(self) -> FlatBatch:
        """Returns the first batch of all, by which the model is built in every process."""
        self.seek(0)
        batch = self.peek(0)
        self._kept = batch, self._iterator
        return batch

    def seek(self, number: int) -> None:
        """Makes the batch of this number the current one."""
        kept, self._kept = self._kept, None
        drop = 0 if self._can_seek else number
        if kept is not None and number == drop:
            batches: Iterator[FlatBatch] = itertools.chain([kept[0]], kept[1])
        elif self._can_seek:
            batches = self._repeat(self._dataset_fn(self._context, first_batch=number))
        else:
            batches = self._repeat(self._dataset_fn(self._context))
        self._iterator = itertools.islice(batches, drop, None)
        self._ahead.clear()

    def _repeat(self, dataset: Any) -> Iterator[FlatBatch]:
        """Yields the batches of a dataset, again and again."""
        begin = self._flat.of(dataset)
        while True:
            empty = True
            for batch in begin():
                empty = False
                yield batch
            if empty:
                raise ValueError("dataset_fn must return at least one batch, got an empty dataset")


class RandomStates:
    """Gives the random layers of a model a state that depends on the step and the batch only.

    Args:
        model: The model.
        seeds: What `RunState.read_seeds` has returned.
    """

    def __init__(self, model: tf.keras.Model, seeds: Sequence[int]) -> None:
        states = map(tf_variable, _keras.random_states(model))
        self._states = list(zip(states, seeds, strict=True))

    def set(self, number: tf.Tensor, batch: int) -> None:
        """Sets the states. Used in a graph.

        Args:
            number: The run's step, an int64 scalar.
            batch: The number of the worker, or of the micro-batch in its step.
        """
        for state, of_layer in self._states:
            seed = zlib.crc32(bytes([batch % 256]), of_layer)
            words = tf.random.stateless_uniform(
                state.shape, [seed, number], minval=None, maxval=None, dtype=state.dtype
            )
            state.assign(words)
