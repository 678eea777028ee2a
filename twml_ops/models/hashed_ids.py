"""The Keras layer of `ops.hash_ids`: hashes ids into a small id space."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import parse
from twml_ops._keras import serializable
from twml_ops.ops._library import library


@serializable
class HashedIds(tf.keras.layers.Layer):
    """Hashes the ids of a batch into [0, 2^bits), the rows of a table with 2^bits rows.

    Different ids may have the same hash (Weinberger et al., "Feature Hashing for Large Scale
    Multitask Learning", ICML 2009).

    Args:
        bits: logarithm of the size of the id space, 1 to 62.
        **kwargs: arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: `bits` is out of range.
    """

    def __init__(self, bits: int, **kwargs: Any) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "int64")
        super().__init__(**kwargs)
        if not 1 <= bits <= 62:
            raise ValueError(f"bits must be in [1, 62], got {bits}")
        self.bits = int(bits)
        self.supports_jit = False  # the op has no XLA kernel

    @property
    def output_dim(self) -> int:
        """Size of the id space, 2^bits."""
        return 1 << self.bits

    def call(self, inputs: Any) -> Any:
        """Hashes the ids of a batch.

        Args:
            inputs: a batch in any form, with ids in the whole range of int64.

        Returns:
            The batch in the same form, with ids in [0, 2^bits). Values and padding are unchanged.
        """
        with library.on_host():
            batch, rebuild = parse(inputs, hashes=True)
            return rebuild(batch._replace(ids=ops.hash_ids(batch.ids, self.bits)), self.output_dim)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {**config, "bits": self.bits}
