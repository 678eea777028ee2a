"""The files of the arrays of a scorer."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

_PAGE = 4096  # bytes
_LEAST_BYTES = 1 << 20  # of an array whose items begin at a page
_CHECKED_BYTES = 8192


def save_array(path: Path, array: NDArray[Any]) -> list[int]:
    """Writes an array in the format NPY.

    The items of large arrays begin at a page. Rows whose size divides a page then never extend over
    two pages, so that one read of a block has a whole row.

    Args:
        path: the file.
        array: the array.

    Returns:
        The size of the file, the CRC-32 of its first and its last 8,192 bytes, and the CRC-32 of
        the items. A scorer that loads the folder compares the first two, and the last one if it
        reads all items.
    """
    if array.nbytes < _LEAST_BYTES:
        np.save(path, array)
    else:
        save_parts(path, array.shape, array.dtype, [array])
    return [*_size_and_ends(path), zlib.crc32(bytes_of(array))]


def save_parts(
    path: Path, shape: Sequence[int], dtype: DTypeLike, parts: Iterable[NDArray[Any]]
) -> None:
    """Writes an array that is made part by part, so that it need not fit into memory.

    Args:
        path: the file.
        shape: the shape of the whole array.
        dtype: the type of its items.
        parts: the array, divided along its first axis.
    """
    with path.open("wb") as file:
        file.write(_header(tuple(shape), np.dtype(dtype)))
        for part in parts:
            file.write(bytes_of(part))


def bytes_of(array: NDArray[Any]) -> Any:
    """The bytes of an array in C order."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def _size_and_ends(path: Path) -> list[int]:
    """The size of a file and the CRC-32 of its first and its last 8,192 bytes."""
    size = path.stat().st_size
    part = min(size, _CHECKED_BYTES)
    with path.open("rb") as file:
        begin = file.read(part)
        file.seek(size - part)
        return [size, zlib.crc32(file.read(part), zlib.crc32(begin))]


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header of version 1.0 of the format, filled up with spaces to the size of a page."""
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    text = str(fields).encode("latin1")
    start = npy.magic(1, 0)
    length = _PAGE - len(start) - 2
    return start + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"
