"""Checkpoints of the training of a `tf.estimator.Estimator`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    check_facts,
    restore,
)
from twml_ops.checkpoint.facts import FACTS
from twml_ops.estimator.graph_variables import graph_variables

v1: Any = tf.compat.v1


class CheckpointHook(v1.train.SessionRunHook):
    """Saves the training every so often, and continues it from the last checkpoint.

        manager = CheckpointManager("run.checkpoints", tables=TablePolicy("intermittent"))
        hook = estimator.CheckpointHook(manager, every_steps=1000)
        trained.train(lambda: batches().skip(hook.saved_step), max_steps=100_000, hooks=[hook])

    A checkpoint has all global variables: weights, slots and the step. When training begins, they
    are restored from the newest checkpoint if that has more steps than the estimator's own. The
    hook does not know the input: `input_fn` must begin after `saved_step` batches, in the same
    order. Then a training that was continued has the bits of one that was not. The state of random
    ops of TensorFlow, such as dropout's, is in their kernels and is not saved.

    With changed rows in the manager, only tables that `as_v1` or `make_model_fn` trains with
    kernels of this package are written by rows; their other writers are not seen.

    The estimator writes checkpoints of its own as well, which evaluation reads;
    `RunConfig(save_checkpoints_steps=...)` makes them rare.

    Args:
        manager: the manager of the checkpoints.
        every_steps: steps between two checkpoints.
        every_seconds: seconds between two checkpoints.
        values: facts about the training, as JSON has them. A checkpoint that has others is
            refused.

    Raises:
        ValueError: neither `every_steps` nor `every_seconds` is given, or one is not positive.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        for name, number in {"every_steps": every_steps, "every_seconds": every_seconds}.items():
            if number is not None and not number > 0:
                raise ValueError(f"{name} must be positive, got {number}")
        if every_steps is None and every_seconds is None:
            raise ValueError("every_steps or every_seconds must be given, got neither")
        self._manager, self._values = manager, dict(values or {})
        self._every_steps, self._every_seconds = every_steps, every_seconds

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint that is not damaged; 0 if there is none."""
        newest = self._manager.newest_intact()
        return newest.manifest.step if newest else 0

    def begin(self) -> None:
        """Adds the ops that read and write the variables to the graph.

        Raises:
            CheckpointError: values of a variable cannot be saved.
        """
        self._session: Any = None
        self._global_step = v1.train.get_or_create_global_step()
        self._variables = graph_variables(lambda: self._session)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Restores the newest checkpoint that is not damaged.

        Args:
            session: in which the variables have their values.
            coord: not used.

        Raises:
            CheckpointError: all checkpoints are damaged, or it is of another model or training.
        """
        self._wait()  # for the one of a session that was lost, with its records of changed rows
        self._session = session
        newest = self._manager.newest_intact()
        step = int(session.run(self._global_step))
        if newest is not None and newest.manifest.step > step:
            check_facts(newest, self._values)
            restore(newest, self._variables, verified=True)
            step = newest.manifest.step
        self._saved_step, self._last_time = step, time.monotonic()

    def before_run(self, run_context: Any) -> Any:
        """Asks for the step.

        Args:
            run_context: not used.

        Returns:
            The arguments of the run.
        """
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes a checkpoint if it is due.

        Args:
            run_context: has the session.
            run_values: the step before or after the update.
        """
        if self._is_due(int(run_values.results) + 1):
            step = int(run_context.session.run(self._global_step))
            if self._is_due(step):
                self._save(step)

    def end(self, session: Any) -> None:
        """Writes the last checkpoint, and waits for it.

        Args:
            session: in which the variables have their values.
        """
        step = int(session.run(self._global_step))
        if step > self._saved_step:
            self._save(step)
        self._wait()

    def _wait(self) -> None:
        try:
            self._manager.close()
        except CheckpointError as e:
            _warn(e)

    def _is_due(self, step: int) -> bool:
        steps = self._every_steps is not None and step - self._saved_step >= self._every_steps
        waited = time.monotonic() - self._last_time
        return steps or (self._every_seconds is not None and waited >= self._every_seconds)

    def _save(self, step: int) -> None:
        self._saved_step, self._last_time = step, time.monotonic()
        try:
            self._manager.save(step, self._variables, {FACTS: self._values})
        except CheckpointError as e:
            _warn(e)


def _warn(error: CheckpointError) -> None:
    warnings.warn(str(error), RuntimeWarning, stacklevel=3)
