"""Variables that live for one op: for ops that change a variable where only values may change."""

from __future__ import annotations

import tensorflow as tf

from twml_ops.ops._library import library

# The name that makes TensorFlow create a variable of its own for each run of the op.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class TemporaryVariable:
    """A variable that holds `value` and is gone with its handle, in eager mode and in functions.

    Args:
        value: a tensor. It stays as it is: an op that changes the variable copies it first.
    """

    def __init__(self, value: tf.Tensor) -> None:
        self.dtype = value.dtype
        with library.on_host():
            self.handle = tf.raw_ops.VarHandleOp(
                dtype=value.dtype, shape=value.shape, shared_name=_ANONYMOUS
            )
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)

    def read(self) -> tf.Tensor:
        """The value now."""
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
