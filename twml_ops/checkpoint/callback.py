"""Checkpoints of `fit`, in the middle of epochs, and the continuation from one of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import _keras
from twml_ops.checkpoint.callback_state import NamedArray, State, Stateful
from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.checkpoint.facts import FACTS, check_facts
from twml_ops.checkpoint.interrupt import Interrupt, TrainingInterrupted
from twml_ops.checkpoint.manager import CheckpointManager, Saved
from twml_ops.checkpoint.reader import CheckpointReader
from twml_ops.checkpoint.restore import STATES, Restoration
from twml_ops.checkpoint.variables import NamedVariable, variables_of
from twml_ops.data import InputPosition
from twml_ops.optimizers.averages import build_averages, training_weights

MakeDataset = Callable[..., tf.data.Dataset]
"""Called with the arguments `position` and `repeat` of `Source.dataset`."""


class CheckpointCallback(tf.keras.callbacks.Callback):
    """Writes checkpoints at intervals, and continues the training from the last checkpoint.

        checkpoint = CheckpointCallback(CheckpointManager("run.checkpoints"), every_seconds=600,
                                        num_examples=train.num_examples(), batch_size=256, seed=7)
        checkpoint.resume(model)  # compiled; does nothing if there is no checkpoint
        batches = checkpoint.input(
            model, lambda **at: train.dataset(256, shuffle=True, seed=7, **at)
        )
        model.fit(**batches, epochs=10, callbacks=[..., checkpoint])

    A checkpoint has the weights, the optimizer, the random state, the metrics of the epoch so far
    and the position in the input, so a training that continues has the same weights, bit for bit,
    as one that was never stopped, on the same machine with the same number of threads. Exceptions:
    training in Hogwild mode, and random layers of Keras 2 without
    `tf.keras.backend.experimental.enable_tf_random_generator()`, whose state is in a kernel; the
    latter gets a warning.

    It must be the last of the callbacks, so that a checkpoint at the end of an epoch has what the
    others do there. A checkpoint that would fall on the last step of an epoch is written after the
    epoch's evaluation.

    Args:
        manager: the manager of the checkpoints.
        num_examples: examples in an epoch.
        batch_size: examples in a batch of all replicas.
        seed: the seed of the order of the examples; None: they are read in order.
        drop_remainder: whether a last short batch of an epoch is left out.
        every_steps: steps between two checkpoints. With `steps_per_execution` the checkpoint is
            written after the execution in which it is due.
        every_seconds: seconds between two checkpoints.
        states: objects whose state is saved as well, such as other callbacks, by name. It is
            restored after the other callbacks' `on_epoch_begin`, or their `on_train_begin` if no
            epoch is left.
        values: facts about the training, as JSON has them. A checkpoint that has others is
            refused by `resume`.
        interrupt: when it is requested, a checkpoint is written and the training ends with
            `TrainingInterrupted`.
        on_error: called if a checkpoint cannot be written; it may raise. Default: it warns, and the
            training continues.
        may_differ: of "num_examples", "batch_size" and "drop_remainder", those in which a
            checkpoint may differ. The training then continues at the beginning of its epoch.

    Attributes:
        has_begun: whether a `fit` with the callback has begun.

    Raises:
        ValueError: neither `every_steps` nor `every_seconds` is given, or a number is not positive.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        *,
        num_examples: int,
        batch_size: int,
        seed: int | None = None,
        drop_remainder: bool = False,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        states: Mapping[str, Stateful] | None = None,
        values: Mapping[str, Any] | None = None,
        interrupt: Interrupt | None = None,
        on_error: Callable[[CheckpointError], None] | None = None,
        may_differ: Sequence[str] = (),
    ) -> None:
        super().__init__()
        numbers = {
            "num_examples": num_examples,
            "batch_size": batch_size,
            "every_steps": every_steps,
            "every_seconds": every_seconds,
        }
        for name, number in numbers.items():
            if number is not None and not number > 0:
                raise ValueError(f"{name} must be positive, got {number}")
        if every_steps is None and every_seconds is None:
            raise ValueError("every_steps or every_seconds must be given, got neither")
        self._manager = manager
        self._batch_size, self._seed = batch_size, seed
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._states, self._values = dict(states or {}), dict(values or {})
        self._interrupt = interrupt or Interrupt()
        self._on_error = on_error or _warn
        short = 0 if drop_remainder else batch_size - 1
        self.steps_per_epoch = (num_examples + short) // batch_size
        self._input = {
            "num_examples": num_examples,
            "batch_size": batch_size,
            "drop_remainder": drop_remainder,
        }
        self._may_differ = tuple(may_differ)
        self._start = InputPosition(seed)
        self._restoration: Restoration | None = None
        self._pending_states: dict[str, State] = {}
        self.has_begun = False
        self._since: tuple[float, int] | None = None
        self._last_time, self._steps_since = time.monotonic(), 0

    @property
    def position(self) -> InputPosition:
        """Where the training starts: at the first example, or where `resume` continues."""
        return self._start

    def resume(self, model: tf.keras.Model) -> CheckpointReader | None:
        """Continues from the newest checkpoint that is not damaged, if there is one.

        The weights are restored now, and all that Keras creates later in the first step of `fit`.

        Args:
            model: the compiled model that `fit` will train.

        Returns:
            The checkpoint; None if there is none.

        Raises:
            CheckpointError: all are damaged, or it is of another model, optimizer, input or
                `values`.
        """
        checkpoint = self._manager.newest_intact()
        if checkpoint is None:
            return None
        saved = checkpoint.manifest.values
        position = self._checked_position(checkpoint, saved)
        self._restoration = Restoration(checkpoint, verified=True)
        build_averages(model)  # which the end of `fit` takes, even if no step is left
        self._restoration.restore_first(variables_of(model))
        self._pending_states = _states_of(checkpoint, saved.get("states", {}))
        missing = sorted(set(self._states) ^ set(self._pending_states))
        if missing:
            raise CheckpointError(f"{checkpoint.folder}: has other states: {', '.join(missing)}")
        self._start = position
        if any(self._input[name] != saved["input"].get(name) for name in self._may_differ):
            self.start_at(InputPosition(position.seed, position.epoch))
        return checkpoint

    def start_at(self, position: InputPosition) -> None:
        """Starts the training at another position than that of the checkpoint.

        Other callbacks begin there: the states that the checkpoint has of them are not restored.

        Args:
            position: the position of the same seed.

        Raises:
            ValueError: it has another seed.
        """
        if position.seed != self._seed:
            raise ValueError(f"position must have the seed {self._seed}, got {position.seed}")
        self._start, self._pending_states = position, {}

    def continue_after(self, earlier: CheckpointCallback) -> None:
        """Counts the steps and seconds to the next checkpoint from the last one of another fit.

        Args:
            earlier: the callback of that fit, which has ended.
        """
        self._since = earlier._last_time, earlier._steps_since

    def input(self, model: tf.keras.Model, make_dataset: MakeDataset) -> dict[str, Any]:
        """The arguments of `fit` that say which batches to train on.

        Args:
            model: the model that `fit` will train.
            make_dataset: makes a dataset of an epoch's batches. It is called with the arguments
                `position` and `repeat`, as `Source.dataset` takes them.

        Returns:
            `x`, `initial_epoch` and, if the training starts in the middle of an epoch of Keras 2,
            `steps_per_epoch`. `x` must not be changed in its length.
        """
        start, in_epoch = self._start, self._start.examples > 0
        _keras.start_in_epoch(
            model,
            start.examples // self._batch_size,
            self.steps_per_epoch,
            lambda: next(iter(make_dataset(position=start, repeat=False))),
        )
        endless = in_epoch and not _keras.KERAS_3
        dataset = make_dataset(position=start, repeat=endless)
        result: dict[str, Any] = {"x": dataset, "initial_epoch": start.epoch}
        if endless:
            result["steps_per_epoch"] = self.steps_per_epoch
        return result

    def on_train_begin(self, logs: Any = None) -> None:
        """Prepares the restoration of what Keras creates in the first step.

        Args:
            logs: not used.
        """
        self.has_begun = True
        self._variables: list[NamedVariable] | None = None
        self._epoch, self._done = self._start.epoch, self._start.examples // self._batch_size
        self._due_after_epoch = False
        self._last_time, self._steps_since = self._since or (time.monotonic(), 0)
        for name in _keras.layers_with_hidden_random_state(self.model):
            warnings.warn(
                f"the random state of the layer {name!r} is in a kernel, so it is not in the "
                "checkpoints: call tf.keras.backend.experimental.enable_tf_random_generator() "
                "before the model is made",
                stacklevel=2,
            )
        if self._restoration is not None:
            _keras.before_first_step(self.model, self._restore_rest)
        if self._epoch >= self.params["epochs"]:  # no epoch is left that begins
            self._restore_states()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restores the state of other callbacks in the first epoch.

        Args:
            epoch: its number.
            logs: not used.
        """
        self._epoch = epoch
        self._restore_states()

    def _restore_states(self) -> None:
        states, self._pending_states = self._pending_states, {}
        for name, state in states.items():
            self._states[name].restore_state(state)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes a checkpoint if it is due.

        Args:
            batch: number of the last batch of the execution, in the epoch.
            logs: not used.

        Raises:
            TrainingInterrupted: a signal asked for it, and a checkpoint has been written.
        """
        done = min(batch + 1, self.steps_per_epoch)
        self._steps_since += done - self._done
        self._done = done
        if not (self._is_due() or self._interrupt.requested):
            return
        if done == self.steps_per_epoch:
            self._due_after_epoch = True
        else:
            self._save(InputPosition(self._seed, self._epoch, done * self._batch_size))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes a checkpoint that became due in the last step of the epoch.

        Args:
            epoch: its number.
            logs: not used.

        Raises:
            TrainingInterrupted: a signal asked for it, and a checkpoint has been written.
        """
        self._done = 0
        if self.model.stop_training:  # the next checkpoint would train on
            return
        if self._due_after_epoch or self._interrupt.requested:
            self._save(InputPosition(self._seed, epoch + 1))

    def on_train_end(self, logs: Any = None) -> None:
        """Waits for the last checkpoint, and restores the slots if no step was left to do that.

        Args:
            logs: not used.
        """
        restoration, self._restoration = self._restoration, None
        if restoration is not None:
            self.model.optimizer.build(self.model.trainable_variables)
            restoration.restore_first(variables_of(self.model))
        try:
            self._manager.wait()
        except CheckpointError as e:
            self._on_error(e)

    def _is_due(self) -> bool:
        steps = self._every_steps is not None and self._steps_since >= self._every_steps
        waited = time.monotonic() - self._last_time
        seconds = self._every_seconds is not None and waited >= self._every_seconds
        return (steps or seconds) and not self._manager.busy

    def _save(self, position: InputPosition) -> None:
        self._due_after_epoch = False
        self._last_time, self._steps_since = time.monotonic(), 0
        try:
            with training_weights(self.model):
                self._manager.save(*self._content(position))
            if self._interrupt.requested:
                self._manager.wait()
        except CheckpointError as e:
            self._on_error(e)
        if self._interrupt.requested:
            raise TrainingInterrupted

    def _content(self, position: InputPosition) -> tuple[int, list[Saved], dict[str, Any]]:
        if self._variables is None:
            self._variables = variables_of(self.model)
        states = {name: each.checkpoint_state() for name, each in self._states.items()}
        arrays = [
            NamedArray(f"{STATES}{name}/{key}", f"{name}/{key}", value)
            for name, state in states.items()
            for key, value in state.arrays.items()
        ]
        values = {
            "position": position.as_dict(),
            "input": self._input,
            FACTS: self._values,
            "states": {name: state.values for name, state in states.items()},
        }
        step = int(tf.convert_to_tensor(self.model.optimizer.iterations))
        return step, [*self._variables, *arrays], values

    def _restore_rest(self, trace: Callable[[], None]) -> None:
        restoration, self._restoration = self._restoration, None
        assert restoration is not None
        trace()
        restoration.restore_all(variables_of(self.model))
        if not self._start.examples:  # the metrics belong to the epoch that has ended
            self.model.reset_metrics()

    def _checked_position(
        self, checkpoint: CheckpointReader, saved: Mapping[str, Any]
    ) -> InputPosition:
        check_facts(checkpoint, self._input, "input", self._may_differ)
        check_facts(checkpoint, self._values, may_differ=self._may_differ)
        try:
            position = InputPosition.from_dict(saved["position"])
        except (KeyError, TypeError, ValueError) as e:
            raise CheckpointError(f"{checkpoint.folder}: has no position in the input: {e}") from e
        if position.seed != self._seed:
            raise CheckpointError(
                f"{checkpoint.folder}: was written by a training with seed = {position.seed!r}, "
                f"got {self._seed!r}"
            )
        return position


def _states_of(
    checkpoint: CheckpointReader, values: Mapping[str, Mapping[str, Any]]
) -> dict[str, State]:
    states = {name: State(dict(value)) for name, value in values.items()}
    for name in checkpoint.entries:
        if name.startswith(STATES):
            owner, _, key = name.removeprefix(STATES).partition("/")
            states[owner].arrays[key] = checkpoint.read(name)
    return states


def _warn(error: CheckpointError) -> None:
    warnings.warn(str(error), RuntimeWarning, stacklevel=2)
