"""A Keras layer around `ops.hash_ids`: ids of any size into a small id space."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import parse
from twml_ops._keras import serializable
from twml_ops.ops._library import library


@serializable
class HashedIds(tf.keras.layers.Layer):
    """Hashes the ids of a batch into [0, 2^bits), so that a table of 2^bits rows holds them all.

    Args:
        bits: size of the id space, 1 to 62.

    Raises:
        ValueError: `bits` out of its range.
    """

    def __init__(self, bits: int, **kwargs: Any) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "int64")
        super().__init__(**kwargs)
        if not 1 <= bits <= 62:
            raise ValueError(f"bits must be in [1, 62], got {bits}")
        self.bits = int(bits)
        self.supports_jit = False  # the op is no XLA op

    @property
    def output_dim(self) -> int:
        """Size of the id space, 2^bits."""
        return 1 << self.bits

    def call(self, inputs: Any) -> Any:
        """A batch in any form → the same batch with hashed ids."""
        with library.on_host():
            batch, rebuild = parse(inputs)
            return rebuild(batch._replace(ids=ops.hash_ids(batch.ids, self.bits)), self.output_dim)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """That of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {**config, "bits": self.bits}
