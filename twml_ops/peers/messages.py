"""The bytes of an update: dense arrays, or the ids and rows of a table.

A slot of a receiver has a header, the data of one message, and a trailer that repeats the header:

    header (64 bytes) | data (capacity) | trailer (64 bytes)

A sender completes each of the three before it begins the next. A receiver reads the trailer, the
data and then the header. If both say the same of a message, the data were complete before it began
to read, and no new message had begun when it ended; otherwise it skips the slot.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from twml_ops import core

HEADER = np.dtype(
    [
        ("iteration", "<i8"),  # from 1; 0: nothing was sent
        ("size", "<i8"),  # bytes of the data
        ("progress", "<i8"),  # what the sender says of its progress
        ("finished", "<i8"),  # whether the sender sends nothing more
        ("unused", "<i8", 4),
    ]
)
HEADER_BYTES = HEADER.itemsize
_ALIGNMENT = 64
_PART = np.dtype([("ids", "<i8"), ("rows", "<i8")])  # bytes of the ids; number of rows
DTYPES = ("float32", "float64", "float16", "bfloat16")


def dtype_of(name: Any) -> np.dtype[Any]:
    """The NumPy type of one of `DTYPES`.

    Args:
        name: The name, or a type of NumPy.

    Returns:
        The type.

    Raises:
        ValueError: It is none of them.
    """
    text = name if isinstance(name, str) else np.dtype(name).name
    if text not in DTYPES:
        raise ValueError(f"dtype must be one of {DTYPES}, got {text!r}")
    if text == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(text)


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of a message, all of it or some of its rows.

    Attributes:
        shape: Shape of the array.
        wire: Type in which the values travel.
        sparse: Whether messages have some of the rows.
    """

    shape: tuple[int, ...]
    wire: np.dtype[Any]
    sparse: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it travels; of the whole array if it is dense."""
        sizes = self.shape[1:] if self.sparse else self.shape
        return int(np.prod(sizes, dtype=np.int64)) * self.wire.itemsize

    def capacity(self, max_rows: int | None = None) -> int:
        """The largest size of the part of a message.

        Args:
            max_rows: Largest number of rows of a sparse part; None: all.

        Returns:
            Bytes.
        """
        if not self.sparse:
            return _aligned(self.row_bytes)
        rows = self.shape[0] if max_rows is None else min(max_rows, self.shape[0])
        ids = _packed_bytes(rows, self.shape[0])
        return _ALIGNMENT + _aligned(ids) + _aligned(rows * self.row_bytes)

    def encode(self, values: np.ndarray, ids: np.ndarray | None = None) -> list[np.ndarray]:
        """The bytes of the part of a message.

        Args:
            values: The array, or its rows `ids` if it is sparse.
            ids: int64, distinct; None for a dense part.

        Returns:
            uint8 arrays, to send one after the other.
        """
        data = np.ascontiguousarray(values, self.wire).reshape(-1).view(np.uint8)
        if not self.sparse:
            return [data, _padding(data.size)]
        assert ids is not None
        packed = np.asarray(core.pack_ids(ids, input_dim=self.shape[0]))
        sizes = np.zeros(_ALIGNMENT, np.uint8)
        sizes[: _PART.itemsize].view(_PART)[0] = packed.size, ids.size
        return [sizes, packed, _padding(packed.size), data, _padding(data.size)]

    def decode(self, data: np.ndarray) -> tuple[np.ndarray | None, np.ndarray, int]:
        """Reads the part of a message.

        Args:
            data: uint8, which begins with the part and belongs to the caller.

        Returns:
            (ids or None, values in the type of the wire, number of bytes).

        Raises:
            ValueError: The bytes are not such a part.
        """
        if not self.sparse:
            return None, self._values(data, 0, self.shape), _aligned(self.row_bytes)
        if data.size < _ALIGNMENT:
            raise ValueError(f"a part of a message must have {_ALIGNMENT} bytes, got {data.size}")
        packed, count = (int(n) for n in data[: _PART.itemsize].view(_PART)[0])
        begin = _ALIGNMENT + _aligned(packed)
        if packed < 0 or count < 0 or begin > data.size:
            raise ValueError(f"a message of {data.size} bytes has no {packed} bytes of ids")
        ids = core.unpack_ids(data[_ALIGNMENT : _ALIGNMENT + packed])
        if ids.size != count or (count and not 0 <= ids.min() <= ids.max() < self.shape[0]):
            raise ValueError(f"a message must have {count} ids in [0, {self.shape[0]})")
        values = self._values(data, begin, (count, *self.shape[1:]))
        return ids, values, begin + _aligned(values.nbytes)

    def _values(self, data: np.ndarray, begin: int, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * self.wire.itemsize
        if begin + size > data.size:
            raise ValueError(f"a message of {data.size} bytes has no {size} bytes of values")
        return data[begin : begin + size].view(self.wire).reshape(shape)


def encode(parts: list[Part], values: list[Any]) -> list[np.ndarray]:
    """The bytes of a message.

    Args:
        parts: Of the message.
        values: For each part the array, or the pair (ids, rows) if it is sparse.

    Returns:
        uint8 arrays, to send one after the other.
    """
    message: list[np.ndarray] = []
    for part, value in zip(parts, values, strict=True):
        ids, rows = value if part.sparse else (None, value)
        message += part.encode(rows, ids)
    return message


def decode(parts: list[Part], data: np.ndarray) -> list[tuple[np.ndarray | None, np.ndarray]]:
    """Reads a message of `encode`.

    Args:
        parts: Of the message.
        data: uint8, the message.

    Returns:
        For each part (ids or None, values in the type of the wire).

    Raises:
        ValueError: The bytes are not such a message.
    """
    found = []
    for part in parts:
        ids, values, size = part.decode(data)
        found.append((ids, values))
        data = data[size:]
    return found


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _padding(size: int) -> np.ndarray:
    return np.zeros(_aligned(size) - size, np.uint8)


def _packed_bytes(count: int, num_rows: int) -> int:
    """An upper bound of the bytes of packed ids: header, count of the row, ids."""
    return 128 + 8 * (-(-count * max(1, (num_rows - 1).bit_length()) // 64) + 2)
