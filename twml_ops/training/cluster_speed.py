"""Whether one process would train faster than a cluster: measured once, by its chief."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops.training.results import SpeedComparison
from twml_ops.training.runners import STEPS_PER_EXECUTION

CLUSTER_SECONDS = 20.0  # in which the speed of the cluster is measured, after its first call
LEAST_SECONDS = 60.0  # that the training goes on; shorter ones are not interrupted
PROCESS_SECONDS = 2.0  # in which the speed of one process is measured, after its first calls
WARM_UP_EPOCHS = 2  # of `STEPS_PER_EXECUTION` steps
MAX_WEIGHTS = 2**28  # of a model that is copied to the chief; creating larger ones takes long
MEMORY_SHARE = 4  # the copy, with two slots a weight, takes at most this part of the memory


class ClusterSpeed:
    """Measures the speed of a cluster, and once that of one process, on the host of the chief.

    Trainings that soon end are not measured, nor models that are large for one process. A
    measurement that fails has no effect on the training.

    Args:
        measure: () -> examples per second of one process.
        report: called with the result.
        steps: the number of steps of the run.
        step_examples: examples of a step, of all workers together.
        clock: () -> seconds.
    """

    def __init__(
        self,
        measure: Callable[[], float],
        report: Callable[[SpeedComparison], None],
        steps: int,
        step_examples: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._report = measure, report
        self._steps, self._step_examples = steps, step_examples
        self._clock = clock
        self._begin: tuple[int, float] | None = None
        self._ended = False

    def on_step(self, step: int) -> None:
        """Takes note of a step of the run, after which the chief calls this."""
        if self._ended:
            return
        now = self._clock()
        if self._begin is None:
            self._begin = step, now
        seconds = now - self._begin[1]
        if seconds < CLUSTER_SECONDS:
            return
        self._ended = True
        per_second = (step - self._begin[0]) / seconds
        if per_second <= 0 or (self._steps - step) / per_second < LEAST_SECONDS:
            return
        try:
            alone = self._measure()
        except Exception as e:  # the training does not depend on it
            reason = f"{type(e).__name__}: {e}".splitlines()[0]
            warnings.warn(
                f"the speed of one process could not be measured: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self._report(SpeedComparison(per_second * self._step_examples, alone))


def fits_one_process(weights: int) -> bool:
    """Whether a model of so many weights is small enough to be copied to the chief."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return weights <= MAX_WEIGHTS and 3 * 4 * weights <= memory / MEMORY_SHARE


def speed_of_one_process(
    model: tf.keras.Model, optimizer: Any, loss: Any, batches: tf.data.Dataset, batch_size: int
) -> float:
    """Trains a model for some seconds in this process.

    Args:
        model: an uncompiled model, which is changed.
        optimizer: an optimizer that is not used elsewhere.
        loss: a loss, as for `Model.compile`.
        batches: batches (x, y) or (x, y, weights), at least one.
        batch_size: examples in a batch.

    Returns:
        Examples per second.
    """
    clock = _Clock()
    model.compile(
        *(optimizer, loss),
        steps_per_execution=STEPS_PER_EXECUTION,
        jit_compile=False,
    )
    model.fit(
        batches.repeat(),
        steps_per_epoch=STEPS_PER_EXECUTION,
        epochs=10**6,
        callbacks=[clock],
        shuffle=False,
        verbose=0,
    )
    return clock.epochs * STEPS_PER_EXECUTION * batch_size / clock.seconds


class _Clock(tf.keras.callbacks.Callback):
    """Ends a training `PROCESS_SECONDS` after its first epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs, self.seconds = 0, 0.0
        self._start = 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if epoch < WARM_UP_EPOCHS:
            self._start = now
            return
        self.epochs, self.seconds = epoch - WARM_UP_EPOCHS + 1, now - self._start
        self.model.stop_training = self.seconds >= PROCESS_SECONDS
