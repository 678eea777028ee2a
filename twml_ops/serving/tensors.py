"""Tensors in protocol messages to NumPy arrays and back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twml_ops.serving.errors import InvalidRequest, TooLarge
from twml_ops.serving.messages import TensorProto

_MAX_RANK = 16
DT_FLOAT, DT_STRING, DT_INT64, DT_BOOL, DT_BFLOAT16, DT_HALF = 1, 7, 9, 10, 14, 19


class _Type(NamedTuple):
    """The type of a tensor: its items in memory, as bytes, and the field that lists them."""

    dtype: np.dtype[Any]
    field: str
    content: np.dtype[Any]
    width: int


def _type(dtype: Any, field: str) -> _Type:
    made = np.dtype(dtype)
    return _Type(made, field, made.newbyteorder("<"), made.itemsize)


_TYPES = {
    DT_FLOAT: _type(np.float32, "float_val"),
    2: _type(np.float64, "double_val"),
    3: _type(np.int32, "int_val"),
    4: _type(np.uint8, "int_val"),
    5: _type(np.int16, "int_val"),
    6: _type(np.int8, "int_val"),
    DT_STRING: _type(object, "string_val"),
    DT_INT64: _type(np.int64, "int64_val"),
    DT_BOOL: _type(np.bool_, "bool_val"),
    DT_BFLOAT16: _type(np.uint16, "half_val"),  # the bits
    17: _type(np.uint16, "int_val"),
    DT_HALF: _type(np.float16, "half_val"),  # the bits
    22: _type(np.uint32, "uint32_val"),
    23: _type(np.uint64, "uint64_val"),
}


class Tensor:
    """A `TensorProto` whose shape and type have been read, and nothing else.

    A tensor whose list of items is shorter than its shape repeats the last of them, as in
    TensorFlow; without items it has zeros. A short message may therefore declare a large array.

    Args:
        name: name of the tensor, for messages.
        message: the message.

    Attributes:
        size: number of items that the shape declares.
        is_text: whether the items are texts.

    Raises:
        InvalidRequest: the message describes no tensor, or one of an unknown type.
    """

    __slots__ = ("_message", "_name", "_shape", "_type", "is_text", "size")

    def __init__(self, name: str, message: Any) -> None:
        self._name, self._message = name, message
        declared, number = message.tensor_shape, message.dtype
        dims = declared.dim
        shape = None if declared.unknown_rank or len(dims) > _MAX_RANK else [d.size for d in dims]
        if shape is None or (shape and min(shape) < 0):
            raise InvalidRequest(
                f"input {name!r} must have a known shape of at most {_MAX_RANK} dimensions"
            )
        if number not in _TYPES:
            raise InvalidRequest(f"input {name!r} has the data type {number}, which is unknown")
        self._shape, self._type, self.size = shape, _TYPES[number], math.prod(shape)
        self.is_text = number == DT_STRING

    def bytes(self, item: int = 0) -> int:
        """The bytes of the array, without making it.

        Texts count 8 bytes each, and what repeated ones have.

        Args:
            item: least number of bytes of an item, such as that of the type that it is cast to.
        """
        size = self.size * max(self._type.width, item)
        if self.is_text and (items := self._message.string_val):
            size += max(0, self.size - len(items)) * len(items[-1])
        return size

    def array(self) -> NDArray[Any]:
        """The array: of numbers, of bools, or of bytes with the dtype object.

        Raises:
            InvalidRequest: the message has other items than its shape and its type.
        """
        message, kind, size = self._message, self._type, self.size
        if self.is_text:
            texts = np.empty(size, object)
            items = list(message.string_val)
            self._check_items(len(items))
            texts[:] = items + [items[-1] if items else b""] * (size - len(items))
            return texts.reshape(self._shape)
        content = message.tensor_content
        if content:
            if len(content) != size * kind.width:
                raise InvalidRequest(
                    f"the content of input {self._name!r} must have {size * kind.width} bytes for "
                    f"the shape {self._shape}, got {len(content)}"
                )
            if kind is _TYPES[DT_BOOL]:  # any byte but 0 is true
                array = np.frombuffer(content, np.uint8) != 0
            else:
                array = np.frombuffer(content, kind.content)
        else:
            array = self._listed(getattr(message, kind.field))
        if kind is _TYPES[DT_BFLOAT16]:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.reshape(self._shape)

    def _listed(self, items: Any) -> NDArray[Any]:
        kind = self._type
        self._check_items(len(items))
        if kind.field in ("half_val", "int_val"):
            stored = np.dtype(np.uint16) if kind.field == "half_val" else kind.dtype
            wide = np.array(items, np.int64)
            array = wide.astype(stored)
            if (array != wide).any():
                got = wide[array != wide][0]
                raise InvalidRequest(f"input {self._name!r} must fit into {stored}, got {got}")
            array = array.view(kind.dtype)
        else:
            array = np.array(items, kind.dtype)
        if array.size == self.size:
            return array
        last = array[-1] if array.size else np.zeros((), kind.dtype)
        return np.concatenate([array, np.full(self.size - array.size, last, kind.dtype)])

    def _check_items(self, listed: int) -> None:
        if listed > self.size:
            raise InvalidRequest(
                f"input {self._name!r} has {listed} items for a shape of {self.size}"
            )


def array_of(name: str, message: Any, max_bytes: int) -> NDArray[Any]:
    """The array of a `TensorProto`.

    Args:
        name: name of the tensor, for messages.
        message: the message.
        max_bytes: largest size of the array.

    Returns:
        An array of numbers, of bools, or of bytes with the dtype object.

    Raises:
        InvalidRequest: the message describes no tensor, or one of an unknown type.
        TooLarge: the array would be larger than `max_bytes`.
    """
    tensor = Tensor(name, message)
    check_bytes(f"input {name!r}", tensor.bytes(), max_bytes)
    return tensor.array()


def check_bytes(what: str, size: int, max_bytes: int) -> None:
    """Refuses arrays that are too large.

    Raises:
        TooLarge: `size` exceeds `max_bytes`.
    """
    if size > max_bytes:
        raise TooLarge(f"{what} has {size} bytes as arrays, at most {max_bytes} are allowed")


def write_floats(array: NDArray[np.float32], tensor: Any) -> None:
    """Writes a float32 array to a `TensorProto`, as a list of items."""
    tensor.dtype = DT_FLOAT
    for dim in array.shape:
        tensor.tensor_shape.dim.add(size=dim)
    tensor.float_val.extend(array.ravel().tolist())


def tensor_of(array: NDArray[Any]) -> Any:
    """The `TensorProto` of an array of float32, int64, bool, or of text or bytes."""
    tensor = TensorProto()
    if array.dtype.kind in "OSU":
        tensor.dtype = DT_STRING
        texts = array.ravel().tolist()
        tensor.string_val.extend(x.encode() if isinstance(x, str) else x for x in texts)
    else:
        (tensor.dtype,) = (d for d, t in _TYPES.items() if t.dtype == array.dtype)
        tensor.tensor_content = np.ascontiguousarray(array).tobytes()
    for dim in array.shape:
        tensor.tensor_shape.dim.add(size=dim)
    return tensor
