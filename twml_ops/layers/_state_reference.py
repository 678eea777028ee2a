"""How a clone of a layer gets the state that is not in the layer's weights."""

from __future__ import annotations

from typing import Any


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
