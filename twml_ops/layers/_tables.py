"""The base of layers with tables, which writes them to files."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops._keras import KERAS_3, direct_variables


class TableLayer(tf.keras.layers.Layer):
    """Base of layers whose weights may be bfloat16 or divided among replicas.

    HDF5 has no bfloat16. Keras 3 handles that itself; with Keras 2 such weights are written as
    float32, without loss.
    """

    def build_from_config(self, config: Any) -> None:
        """Builds the layer of a loaded model.

        Keras 2 does it outside of the layer's scope. Within it, the weights get the names that they
        have in a model that is called, which `CompositeOptimizer` looks for.
        """
        with contextlib.nullcontext() if KERAS_3 else tf.name_scope(self.name):
            super().build_from_config(config)

    def save_own_variables(self, store: Any) -> None:
        """Writes the weights to a `.keras` or `.weights.h5` file, with whole tables."""
        if KERAS_3 and not self._divided():
            super().save_own_variables(store)
            return
        for i, variable in enumerate(direct_variables(self)):
            wide = tf.float32 if variable.dtype == "bfloat16" else variable.dtype
            store[f"{i}"] = tf.cast(placement.placement_of(variable).read(variable), wide).numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the weights."""
        if KERAS_3 and not self._divided():
            super().load_own_variables(store)
            return
        variables = direct_variables(self)
        if len(store) != len(variables):
            raise ValueError(
                f"{type(self).__name__} '{self.name}' has {len(variables)} weights, "
                f"got {len(store)} in the file"
            )
        for i, variable in enumerate(variables):
            placement.placement_of(variable).assign(variable, store[f"{i}"][...])

    def _divided(self) -> bool:
        return any(placement.placement_of(v).is_sharded for v in direct_variables(self))
