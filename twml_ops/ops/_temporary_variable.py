"""Variables that live for one op, for ops that update a variable in place."""

from __future__ import annotations

import tensorflow as tf

from twml_ops.ops._library import library

# With this name TensorFlow creates a new variable each time the op runs.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class TemporaryVariable:
    """A variable with the lifetime of its handle, in eager mode and in functions.

    Args:
        value: Initial value. It is not modified: an op that updates the variable copies it first.
        device: Where the variable is if that is a GPU on which the ops run; otherwise it is on the
            host.
    """

    def __init__(self, value: tf.Tensor, device: str | None = None) -> None:
        self.dtype = value.dtype
        with library.beside(device), library.scope():
            self.handle = tf.raw_ops.VarHandleOp(
                dtype=value.dtype, shape=value.shape, shared_name=_ANONYMOUS
            )
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    def read(self) -> tf.Tensor:
        """The current value."""
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
