"""How a clone of a layer comes by what the layer has learned outside its weights."""

from __future__ import annotations

from typing import Any


class StateReference(int):
    """An integer of a layer's config that, within the process, leads to the layer itself.

    `clone_model` makes a layer anew from its config, and copies weights by `set_weights`, in which
    Keras 3 has no variables whose size may change. A config written to a file, or pickled, has the
    plain integer.
    """

    layer: Any

    def __new__(cls, value: int, layer: Any) -> StateReference:
        """The integer `value`, of `layer`."""
        made = super().__new__(cls, value)
        made.layer = layer
        return made

    def __copy__(self) -> StateReference:
        return self

    def __deepcopy__(self, memo: Any) -> StateReference:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)
