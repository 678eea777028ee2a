"""What objects beside the model, such as callbacks, have to be saved with it."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf


@dataclasses.dataclass
class State:
    """The state of an object in a checkpoint, as JSON values and arrays.

    Attributes:
        values: as JSON has them.
        arrays: by name; of NumPy or variables, whose values are read when the state is saved.
    """

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    arrays: dict[str, np.ndarray | tf.Variable] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Stateful(Protocol):
    """An object with a state that a checkpoint holds."""

    def checkpoint_state(self) -> State:
        """The values that a checkpoint of this moment has to hold.

        Returns:
            The state.
        """

    def restore_state(self, state: State) -> None:
        """Puts the object into the state of a checkpoint.

        Args:
            state: what `checkpoint_state` returned, with arrays of NumPy.
        """


@dataclasses.dataclass(frozen=True)
class NamedArray:
    """An array of a `State`, as a manager saves it.

    Attributes:
        name: in the checkpoint.
        label: name for people.
        value: of NumPy or a variable.
    """

    name: str
    label: str
    value: Any

    def view(self) -> np.ndarray:
        """The current value.

        Returns:
            The value, which must not be written.
        """
        value = self.value
        return value if isinstance(value, np.ndarray) else np.asarray(value.numpy())
