"""State of a size known only after `fit`, `adapt` or loading, in plain variables."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf


class ResizableState:
    """Mixin of Keras layers that keep such variables as the attributes `_<name>`."""

    state_names: ClassVar[tuple[str, ...]]

    @property
    def state_variables(self) -> list[tf.Variable]:
        """The state, in the order of `state_names`.

        Keras 3 does not count them among a model's `variables`; a `tf.Module` that exports a
        function of the model without tracking the model must hold them too.
        """
        return [getattr(self, f"_{name}") for name in self.state_names]

    def _take_state(self, other: ResizableState) -> None:
        """Takes the state of another layer of the same class."""
        for mine, theirs in zip(self.state_variables, other.state_variables, strict=True):
            mine.assign(theirs.read_value())

    def save_own_variables(self, store: Any) -> None:
        """Writes the state to a `.keras` or `.weights.h5` file."""
        for name, variable in zip(self.state_names, self.state_variables, strict=True):
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the state, of whatever size it is."""
        for name, variable in zip(self.state_names, self.state_variables, strict=True):
            variable.assign(np.array(store[name]))
