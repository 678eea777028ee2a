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
    """The type of a tensor: its items in memory, and the field that lists them."""

    dtype: Any
    field: str


_TYPES = {
    DT_FLOAT: _Type(np.float32, "float_val"),
    2: _Type(np.float64, "double_val"),
    3: _Type(np.int32, "int_val"),
    4: _Type(np.uint8, "int_val"),
    5: _Type(np.int16, "int_val"),
    6: _Type(np.int8, "int_val"),
    DT_INT64: _Type(np.int64, "int64_val"),
    DT_BOOL: _Type(np.bool_, "bool_val"),
    DT_BFLOAT16: _Type(np.uint16, "half_val"),  # the bits
    17: _Type(np.uint16, "int_val"),
    DT_HALF: _Type(np.float16, "half_val"),  # the bits
    22: _Type(np.uint32, "uint32_val"),
    23: _Type(np.uint64, "uint64_val"),
}


def array_of(name: str, tensor: Any, max_bytes: int) -> NDArray[Any]:
    """The array of a `TensorProto`.

    A tensor whose list of items is shorter than its shape repeats the last of them, as in
    TensorFlow; without items it has zeros.

    Args:
        name: name of the tensor, for messages.
        tensor: the message.
        max_bytes: largest size of the array.

    Returns:
        An array of numbers, of bools, or of bytes with the dtype object.

    Raises:
        InvalidRequest: the message describes no tensor, or one of an unknown type.
        TooLarge: the array would be larger than `max_bytes`.
    """
    check_bytes(f"input {name!r}", decoded_bytes(name, tensor), max_bytes)
    shape = _shape(name, tensor)
    size = math.prod(shape)
    if tensor.dtype == DT_STRING:
        texts = np.empty(size, object)
        items = list(tensor.string_val)
        texts[:] = items + [items[-1] if items else b""] * (size - len(items))
        return texts.reshape(shape)
    dtype, field = _TYPES[tensor.dtype]
    width = np.dtype(dtype).itemsize
    if tensor.tensor_content:
        if len(tensor.tensor_content) != size * width:
            raise InvalidRequest(
                f"the content of input {name!r} must have {size * width} bytes for the shape "
                f"{list(shape)}, got {len(tensor.tensor_content)}"
            )
        if tensor.dtype == DT_BOOL:  # any byte but 0 is true
            array = np.frombuffer(tensor.tensor_content, np.uint8) != 0
        else:
            array = np.frombuffer(tensor.tensor_content, np.dtype(dtype).newbyteorder("<"))
    else:
        listed = getattr(tensor, field)
        if field == "half_val":
            bits = np.array(listed, np.int64).astype(np.uint16)
            array = bits.view(dtype)
        elif field == "int_val":
            array = np.array(listed, np.int64).astype(dtype)
        else:
            array = np.array(listed, dtype)
        if array.size != size:
            last = array[-1] if array.size else np.zeros((), dtype)
            array = np.concatenate([array, np.full(size - array.size, last, array.dtype)])
    if tensor.dtype == DT_BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.reshape(shape)


def decoded_bytes(name: str, tensor: Any) -> int:
    """The bytes of the array of a `TensorProto`, from its shape and its type alone.

    A shape may declare any number of items, as the last one that is listed repeats. Of texts, the
    repeated ones and 8 bytes for each count.

    Args:
        name: name of the tensor, for messages.
        tensor: the message.

    Raises:
        InvalidRequest: the message describes no tensor, one of an unknown type, or has more items
            than its shape.
    """
    size = items_of(name, tensor)
    if tensor.dtype != DT_STRING and tensor.dtype not in _TYPES:
        raise InvalidRequest(f"input {name!r} has the data type {tensor.dtype}, which is unknown")
    texts = tensor.dtype == DT_STRING
    field = "string_val" if texts else _TYPES[tensor.dtype].field
    items = getattr(tensor, field)
    listed = len(items)
    if listed > size:
        raise InvalidRequest(f"input {name!r} has {listed} items for a shape of {size}")
    if texts:
        return size * 8 + (size - listed) * (len(items[-1]) if listed else 0)
    return size * np.dtype(_TYPES[tensor.dtype].dtype).itemsize


def items_of(name: str, tensor: Any) -> int:
    """The number of items that the shape of a `TensorProto` declares.

    Raises:
        InvalidRequest: it declares none.
    """
    return math.prod(_shape(name, tensor))


def check_bytes(what: str, size: int, max_bytes: int) -> None:
    """Refuses arrays that are too large.

    Raises:
        TooLarge: `size` exceeds `max_bytes`.
    """
    if size > max_bytes:
        raise TooLarge(f"{what} has {size} bytes as arrays, at most {max_bytes} are allowed")


def _shape(name: str, tensor: Any) -> tuple[int, ...]:
    dims = tensor.tensor_shape.dim
    if not (tensor.tensor_shape.unknown_rank or len(dims) > _MAX_RANK):
        shape = tuple(dim.size for dim in dims)
        if min(shape, default=0) >= 0:
            return shape
    raise InvalidRequest(
        f"input {name!r} must have a known shape of at most {_MAX_RANK} dimensions"
    )


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
        (tensor.dtype,) = (d for d, t in _TYPES.items() if t.dtype == array.dtype.type)
        tensor.tensor_content = np.ascontiguousarray(array).tobytes()
    for dim in array.shape:
        tensor.tensor_shape.dim.add(size=dim)
    return tensor
