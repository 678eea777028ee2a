"""A variable on a server, known to all processes by its name."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_FETCH_BYTES = 64 << 20  # of one message; a protocol buffer ends at 2 GB


class RemoteVariable:
    """What every process that names it finds on the server: read, updated in place by our ops.

    It behaves as a `tf.Variable` as far as optimizers ask. It has no initial value: reading it
    before somebody has assigned one is an error.

    Args:
        name: the same in all processes.
        shape: of it.
        dtype: of it.
        device: that holds it.
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
        """Whether it has a value."""
        with tf.device(self.device):
            return bool(tf.raw_ops.VarIsInitializedOp(resource=self.handle).numpy())

    def value(self) -> tf.Tensor:
        """Its value, on its device."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
            # Eagerly that would wait for the server, and with Python's lock held: no time limit
            # could end it.
            if not tf.executing_eagerly():
                value.set_shape(self.shape)
            return value

    def assign(self, value: Any) -> tf.Tensor:
        """Sets it; a large value goes in parts."""
        with tf.device(self.device):
            value = self._arrived(value) if tf.executing_eagerly() else self._cast(value)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)
        self.wait()
        return value

    def fill(self, value: float) -> None:
        """Sets all of it to one number, without sending them."""
        with tf.device(self.device):
            full = tf.fill(self.shape, tf.cast(value, self.dtype))
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=full)
        self.wait()

    def wait(self) -> None:
        """Until its server has done what it was told eagerly, one op after the other.

        An op without outputs is only sent: a function, or who looks for a file, could be there
        before it.

        Raises:
            tf.errors.UnavailableError: it has no value there.
        """
        if tf.executing_eagerly() and not self.exists():
            raise tf.errors.UnavailableError(None, None, f"{self.name} was not set on its server")

    def assign_add(self, value: Any) -> tf.Tensor:
        """Adds to it."""
        with tf.device(self.device):
            tf.raw_ops.AssignAddVariableOp(resource=self.handle, value=self._cast(value))
            return self.value()

    def assign_sub(self, value: Any) -> tf.Tensor:
        """Subtracts from it."""
        with tf.device(self.device):
            tf.raw_ops.AssignSubVariableOp(resource=self.handle, value=self._cast(value))
            return self.value()

    def numpy(self) -> Any:
        """Its value, as NumPy has it."""
        return self.value().numpy()

    def fetch(self) -> tf.Tensor:
        """Its value, brought here in parts."""
        whole = self.value()
        parts = []
        for start, stop in self._parts():
            with tf.device(self.device):
                part = whole[start:stop]
            parts.append(tf.identity(part.numpy()))
        return tf.concat(parts, axis=0) if parts else tf.constant(whole.numpy())

    def _cast(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        return value if value.dtype == self.dtype else tf.cast(value, self.dtype)

    def _arrived(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        parts = [tf.identity(value[a:b]) for a, b in self._parts()]
        return self._cast(tf.concat(parts, axis=0) if len(parts) > 1 else value)

    def _parts(self) -> list[tuple[int, int]]:
        if not self.shape.rank:
            return []
        rows = self.shape[0]
        step = max(1, _FETCH_BYTES * rows // max(1, self.shape.num_elements() * 4))
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
