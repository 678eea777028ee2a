"""A variable on a parameter server, which all processes identify by its name."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_MESSAGE_BYTES = 64 << 20  # of one transfer; a protocol buffer has at most 2 GB


class RemoteVariable:
    """A variable that is on a server and that all processes share by its name.

    It has those methods of `tf.Variable` that optimizers use, and the ops of this package update it
    in place. It has no initial value: reading it before a process has assigned one is an error.

    Args:
        name: The name, which is the same in all processes.
        shape: Its shape.
        dtype: Its type.
        device: The TensorFlow device that holds it.
    """

    def __init__(self, name: str, shape: Sequence[Any], dtype: Any, device: str) -> None:
        self.name = name
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.device = device
        with tf.init_scope(), tf.device(device):
            self.handle = tf.raw_ops.VarHandleOp(
                dtype=self.dtype, shape=self.shape, shared_name=name, container=""
            )

    def exists(self) -> bool:
        """Tells whether the variable has a value."""
        with tf.device(self.device):
            return bool(tf.raw_ops.VarIsInitializedOp(resource=self.handle).numpy())

    def value(self) -> tf.Tensor:
        """Returns the value, as a tensor on the device of the variable."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
            # In eager mode `set_shape` would wait for the server while it holds Python's global
            # lock, so that no timeout could end the wait.
            if not tf.executing_eagerly():
                value.set_shape(self.shape)
            return value

    def assign(self, value: Any) -> tf.Tensor:
        """Sets the value. In eager mode a large value is sent in several messages."""
        with tf.device(self.device):
            value = self._send(value) if tf.executing_eagerly() else self._cast(value)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)
        self.wait()
        return value

    def fill(self, value: float) -> None:
        """Sets all elements to one number, which the server expands."""
        with tf.device(self.device):
            full = tf.fill(self.shape, tf.cast(value, self.dtype))
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=full)
        self.wait()

    def wait(self) -> None:
        """Waits until the server has run the ops that were sent to it in eager mode.

        TensorFlow does not wait for a remote op without outputs, so that a function or a read of a
        file could overtake it. Does nothing in a graph.

        Raises:
            tf.errors.UnavailableError: The variable has no value on the server.
        """
        if tf.executing_eagerly() and not self.exists():
            raise tf.errors.UnavailableError(
                None, None, f"{self.name} has no value on its server after it was assigned"
            )

    def assign_add(self, value: Any) -> tf.Tensor:
        """Adds a value, and returns the new one."""
        with tf.device(self.device):
            tf.raw_ops.AssignAddVariableOp(resource=self.handle, value=self._cast(value))
            return self.value()

    def assign_sub(self, value: Any) -> tf.Tensor:
        """Subtracts a value, and returns the new one."""
        with tf.device(self.device):
            tf.raw_ops.AssignSubVariableOp(resource=self.handle, value=self._cast(value))
            return self.value()

    def numpy(self) -> Any:
        """Returns the value as a NumPy array."""
        return self.value().numpy()

    def fetch(self) -> tf.Tensor:
        """Copies the value to this process, in several messages if it is large."""
        whole = self.value()
        parts = []
        for start, stop in self._row_ranges():
            with tf.device(self.device):
                part = whole[start:stop]
            parts.append(tf.identity(part.numpy()))
        return tf.concat(parts, axis=0) if parts else tf.constant(whole.numpy())

    def _cast(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        return value if value.dtype == self.dtype else tf.cast(value, self.dtype)

    def _send(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        parts = [tf.identity(value[a:b]) for a, b in self._row_ranges()]
        return self._cast(tf.concat(parts, axis=0) if len(parts) > 1 else value)

    def _row_ranges(self) -> list[tuple[int, int]]:
        if not self.shape.rank:
            return []
        rows = self.shape[0]
        step = max(1, _MESSAGE_BYTES * rows // max(1, self.shape.num_elements() * 4))
        return [(a, min(a + step, rows)) for a in range(0, rows, step)]


def _operator(name: str) -> Any:
    function = getattr(operator, name)
    return (
        lambda self, other: function(self.value(), other),
        lambda self, other: function(other, self.value()),
    )


for _name in ("add", "sub", "mul", "truediv"):
    _forward, _backward = _operator(_name)
    setattr(RemoteVariable, f"__{_name}__", _forward)
    setattr(RemoteVariable, f"__r{_name}__", _backward)


def _to_tensor(
    variable: RemoteVariable, dtype: Any = None, name: Any = None, as_ref: bool = False
) -> tf.Tensor:
    del name, as_ref
    value = variable.value()
    return value if dtype is None or dtype == value.dtype else NotImplemented


tf.register_tensor_conversion_function(RemoteVariable, _to_tensor)
