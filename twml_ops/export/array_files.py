"""The files of the arrays of a scorer."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

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
        The size of the file and its checksum: the CRC-32 of its first and its last 8,192 bytes. A
        scorer that loads the folder compares both.
    """
    if array.nbytes < _LEAST_BYTES:
        np.save(path, array)
    else:
        array = np.ascontiguousarray(array)
        with path.open("wb") as file:
            file.write(_header(array))
            for begin in range(0, len(array), step := max(1, (_LEAST_BYTES * len(array)) // array.nbytes)):
                file.write(array[begin : begin + step].data.cast("B"))
    return checksum(path)


def checksum(path: Path) -> list[int]:
    """The size of a file and the CRC-32 of its first and its last 8,192 bytes."""
    size = path.stat().st_size
    part = min(size, _CHECKED_BYTES)
    with path.open("rb") as file:
        begin = file.read(part)
        file.seek(size - part)
        return [size, zlib.crc32(file.read(part), zlib.crc32(begin))]


def _header(array: NDArray[Any]) -> bytes:
    """The header of version 1.0 of the format, filled up with spaces to the size of a page."""
    text = str(npy.header_data_from_array_1_0(array)).encode("latin1")
    start = npy.magic(1, 0)
    length = _PAGE - len(start) - 2
    return start + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"
