"""The moving average of one variable: its slots, and how they follow the updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._library import library
from twml_ops.ops._tape import device_scope_of, has_kernel_for
from twml_ops.ops._temporary_variable import TemporaryVariable
from twml_ops.ops.average_rows import log_of_momentum
from twml_ops.ops.changed_rows import writes_unmarked
from twml_ops.ops.reset_rows import dynamic_rows_of
from twml_ops.ops.stock.average_rows import advanced
from twml_ops.optimizers.apply_update import Concurrency
from twml_ops.optimizers.update_rules import SlotSpec

AVERAGE_SLOTS = ("average", "average_step")


class CurrentAverages(Sequence[Any]):
    """Averages that are computed when they are read.

    Keras reads all attributes of an optimizer when it saves a model, which must not change it.

    Args:
        compute: returns the averages of all variables.
    """

    def __init__(self, compute: Callable[[], list[Any]]) -> None:
        self._compute = compute

    def __getitem__(self, index: Any) -> Any:
        """The averages at an index or a slice."""
        return self._compute()[index]

    def __iter__(self) -> Iterator[Any]:
        """All averages, computed once."""
        return iter(self._compute())

    def __len__(self) -> int:
        """The number of variables."""
        return len(self._compute())


def average_slots(shape: Sequence[int], dtype: Any) -> list[SlotSpec]:
    """The slots for the average of a variable.

    Args:
        shape: the shape of the variable.
        dtype: the type of the variable.

    Returns:
        The slots of `MovingAverage`. Their initial values mean that the average is the variable.
    """
    dtype = tf.as_dtype(dtype)
    averages = tf.float32 if dtype == tf.bfloat16 else dtype
    return [
        SlotSpec(AVERAGE_SLOTS[0], tuple(shape), averages, 0.0),
        SlotSpec(AVERAGE_SLOTS[1], tuple(shape[:1]), tf.int64, 0),
    ]


class MovingAverage(NamedTuple):
    """The moving average of a variable, which `ops.average_rows` explains.

    Attributes:
        variable: [N, ...], or a scalar.
        values: the values of its shape.
        steps: int64 [N], or a scalar.
    """

    variable: Any
    values: Any
    steps: Any

    def advance(
        self, gradient: Any, step: tf.Tensor, momentum: float, concurrency: Concurrency
    ) -> None:
        """Advances what a gradient is going to update, before the update.

        Args:
            gradient: `tf.Tensor` or `tf.IndexedSlices`.
            step: integer scalar, the number of the step of the update.
            momentum: the momentum of the average.
            concurrency: the concurrency of the optimizer.
        """
        is_kernel_type = self.variable.dtype in (tf.float32, tf.bfloat16)
        if not isinstance(gradient, tf.IndexedSlices) or not is_kernel_type:
            self.advance_all(step, momentum)
            return
        with device_scope_of(self.variable):
            ops.average_rows(*self, gradient, step, momentum, hogwild=concurrency == "hogwild")

    def advance_all(self, step: tf.Tensor, momentum: float) -> None:
        """Advances the whole average: afterwards `values` is the average before `step`.

        Args:
            step: integer scalar, the number of the next step.
            momentum: the momentum of the average.
        """
        with device_scope_of(self.variable):
            if self._has_kernel():
                rows = tf.range(self.variable.shape[0], dtype=tf.int64)
                ops.average_rows(*self, tf.IndexedSlices(rows, rows), step, momentum, fuse=False)
                return
            writes_unmarked(self)
            values, steps = advanced(
                self.variable.value(),
                self.values.value(),
                self.steps.value(),
                step,
                log_of_momentum(momentum),
            )
            self.values.assign(values)
            self.steps.assign(steps)

    def current(self, step: tf.Tensor, momentum: float) -> tuple[tf.Tensor, tf.Tensor]:
        """The average before a step, in eager mode. Nothing is changed.

        Args:
            step: integer scalar, the number of the next step.
            momentum: the momentum of the average.

        Returns:
            `values` and `steps`, as `advance_all` would leave them.
        """
        variable, values, steps = (v.read_value() for v in self)
        if step == 0:
            return tf.cast(variable, values.dtype), steps
        dynamic = dynamic_rows_of(self.variable)
        if dynamic is not None:  # Their averages belong to an earlier id.
            steps = tf.where(dynamic.stale_slots.read_value(), tf.zeros_like(steps), steps)
        with device_scope_of(self.variable):
            if not self._has_kernel():
                return advanced(variable, values, steps, step, log_of_momentum(momentum))
            of_step = MovingAverage(*(TemporaryVariable(t) for t in (variable, values, steps)))
            rows = tf.range(self.variable.shape[0], dtype=tf.int64)
            ops.average_rows(*of_step, tf.IndexedSlices(rows, rows), step, momentum, fuse=False)
            return of_step.values.read(), of_step.steps.read()

    def _has_kernel(self) -> bool:
        is_table = self.variable.dtype in (tf.float32, tf.bfloat16) and self.variable.shape.rank
        return bool(is_table) and library.marks_rows and has_kernel_for(self.variable)
