"""Tensors in protocol messages to NumPy arrays and back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twml_ops.serving.errors import InvalidRequest, TooLarge
from twml_ops.serving.messages import TensorProto

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
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if tensor.tensor_shape.unknown_rank or min(shape, default=0) < 0 or len(shape) > 16:
        raise InvalidRequest(f"input {name!r} must have a known shape of at most 16 dimensions")
    size = math.prod(shape)
    if tensor.dtype == DT_STRING:
        _check_size(name, size * 8, max_bytes)
        texts = np.empty(size, object)
        items = list(tensor.string_val)
        texts[:] = _fill(name, items, size, b"")
        return texts.reshape(shape)
    if tensor.dtype not in _TYPES:
        raise InvalidRequest(f"input {name!r} has the data type {tensor.dtype}, which is unknown")
    dtype, field = _TYPES[tensor.dtype]
    width = np.dtype(dtype).itemsize
    _check_size(name, size * width, max_bytes)
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
        if field in ("half_val", "int_val"):
            stored = np.uint16 if field == "half_val" else dtype
            wide = np.array(listed, np.int64)
            array = wide.astype(stored)
            if (array != wide).any():
                got = wide[array != wide][0]
                raise InvalidRequest(f"input {name!r} must fit into {np.dtype(stored)}, got {got}")
            if field == "half_val":
                array = array.view(dtype)
        else:
            array = np.array(listed, dtype)
        if array.size != size:
            zero = np.zeros((), dtype)
            array = np.array(_fill(name, list(array), size, zero), dtype)
    if tensor.dtype == DT_BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.reshape(shape)


def _check_size(name: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise TooLarge(f"input {name!r} has {size} bytes, at most {max_bytes} are allowed")


def _fill(name: str, items: list[Any], size: int, zero: Any) -> list[Any]:
    if len(items) > size:
        raise InvalidRequest(f"input {name!r} has {len(items)} items for a shape of {size}")
    return items + [items[-1] if items else zero] * (size - len(items))


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
