"""State of a size known only after `adapt` or loading, in plain variables."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf


class ResizableState:
    """Mixin of Keras layers that keep such variables as the attributes `_<name>`."""

    state_names: ClassVar[tuple[str, ...]]
    sizing_argument: ClassVar[str]
    """Name of the integer argument of the constructor that refers to the state in a config."""

    @property
    def state_variables(self) -> list[tf.Variable]:
        """The state, in the order of `state_names`.

        Keras 3 does not count them among a model's `variables`; a `tf.Module` that exports a
        function of the model without tracking the model must hold them too.
        """
        return [getattr(self, f"_{name}") for name in self.state_names]

    @property
    def _has_state(self) -> bool:
        """Whether there is a state, from `adapt` or a file: the last variable has items."""
        return int(tf.size(self.state_variables[-1].read_value())) > 0

    def _reference(self) -> dict[str, int]:
        """The sizing argument for `get_config`, from which clones of the layer copy the state."""
        value: int = getattr(self, self.sizing_argument)
        if tf.executing_eagerly() and self._has_state:
            value = StateReference(value, self)
        return {self.sizing_argument: value}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Creates a layer from its config.

        A config from the same process also copies the state of the original layer, so that clones
        of a model have it as well. After loading from a file, the state comes with the weights.

        Args:
            config: what `get_config` returned.

        Returns:
            The layer.
        """
        value = config[cls.sizing_argument]
        layer = cls(**{**config, cls.sizing_argument: int(value)})
        if isinstance(value, StateReference):
            pairs = zip(layer.state_variables, value.layer.state_variables, strict=True)
            for mine, theirs in pairs:
                mine.assign(theirs.read_value())
        return layer

    def save_own_variables(self, store: Any) -> None:
        """Writes the state to a `.keras` or `.weights.h5` file."""
        for name, variable in zip(self.state_names, self.state_variables, strict=True):
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the state, of whatever size it is."""
        for name, variable in zip(self.state_names, self.state_variables, strict=True):
            variable.assign(np.array(store[name]))


class StateReference(int):
    """An integer in a layer's config that, within the process, also refers to the layer.

    `clone_model` creates a layer from its config and copies weights with `set_weights`. Keras 3
    does not include variables of varying size in these weights, so `from_config` copies them from
    the layer that this integer refers to. In a config that is written to a file or pickled it is a
    plain integer.
    """

    layer: Any

    def __new__(cls, value: int, layer: Any) -> StateReference:
        """An integer that refers to `layer`."""
        made = super().__new__(cls, value)
        made.layer = layer
        return made

    def __copy__(self) -> StateReference:
        return self

    def __deepcopy__(self, memo: Any) -> StateReference:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)
