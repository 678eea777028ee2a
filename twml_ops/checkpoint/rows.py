"""The format of the rows in an entry of a checkpoint: all or some of a table, as they are or
quantized.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import core

ROWS = "rows"
"""The encoding of `encode_rows`."""

BITS = (8, 4, 3, 2)
_QUANTIZED = ("float32", "bfloat16")
_PIECE_ITEMS = 1 << 22  # of a matrix that is quantized at once
_UNSEARCHED = 8  # bits from which on the search of a smaller range gains nothing


@dataclasses.dataclass(frozen=True)
class EncodedRows:
    """Rows as they are written.

    Attributes:
        pieces: arrays whose bytes follow each other.
        details: what `decode_rows` needs to read them.
    """

    pieces: list[np.ndarray]
    details: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)


def check_bits(bits: int | None, where: str) -> None:
    """Checks a number of bits.

    Args:
        bits: the number of bits of a weight; None: as it is.
        where: for the message.

    Raises:
        ValueError: rows cannot be quantized to so many bits.
    """
    if bits is not None and bits not in BITS:
        raise ValueError(f"{where} must be 8, 4, 3 or 2 bits or None, got {bits!r}")


def encode_rows(
    rows: np.ndarray, ids: np.ndarray | None, num_rows: int, bits: int | None
) -> EncodedRows:
    """Encodes rows of a table.

    Rows are quantized if they are matrices of float32 or bfloat16 and that makes them smaller;
    other ones stay as they are. Quantized rows are entropy-coded, by zlib with Huffman codes alone:
    the codes of a row are not equally frequent, but nothing in them repeats.

    Args:
        rows: [C, ...].
        ids: int64 [C], their numbers in ascending order; None: all rows, C = N.
        num_rows: N, of the whole table.
        bits: the number of bits of a weight after quantization; None: as it is.

    Returns:
        The pieces and what is needed to read them.
    """
    pieces: list[np.ndarray] = []
    details: dict[str, Any] = {"rows": len(rows)}
    if ids is not None:
        bitmap = len(ids) * 4 > math.ceil(num_rows / 8)
        details["ids"] = "bitmap" if bitmap else "<u4" if num_rows < 2**32 else "<i8"
        pieces.append(_bitmap(ids, num_rows) if bitmap else ids.astype(details["ids"]))
    matrix = rows.reshape(len(rows), -1) if rows.size else rows
    if bits is None or rows.dtype.name not in _QUANTIZED or not rows.size:
        return EncodedRows([*pieces, rows], details)
    per_piece = max(1, _PIECE_ITEMS // matrix.shape[1])
    bins = {"bins": 0} if bits >= _UNSEARCHED else {}
    quantized = [
        core.quantize_rows(matrix[i : i + per_piece].astype(np.float32), bits=bits, **bins)
        for i in range(0, len(matrix), per_piece)
    ]
    if sum(q.nbytes for q in quantized) >= rows.nbytes:
        return EncodedRows([*pieces, rows], details)
    details["quantized"] = [q.nbytes for q in quantized]
    packed = [_entropy_coded(q) for q in quantized]
    if sum(p.nbytes for p in packed) < sum(details["quantized"]):
        details["stored"] = [p.nbytes for p in packed]
        quantized = packed
    return EncodedRows([*pieces, *quantized], details)


def decode_rows(
    data: np.ndarray, dtype: str, shape: Sequence[int], details: dict[str, Any]
) -> tuple[np.ndarray | None, np.ndarray]:
    """Reads what `encode_rows` wrote.

    Args:
        data: uint8, all bytes.
        dtype: name of the type of an element.
        shape: [N, ...] of the whole table.
        details: the details of the encoding.

    Returns:
        The numbers of the rows, or None for all, and the rows [C, ...].

    Raises:
        ValueError: the bytes or the details are not an output of `encode_rows` for such a table.
    """
    try:
        count, num_rows, at = int(details["rows"]), int(shape[0]), 0
        ids = None
        if "ids" in details:
            kind = details["ids"]
            if kind not in ("bitmap", "<u4", "<i8"):
                raise ValueError(f"ids must be a bitmap, <u4 or <i8, got {kind!r}")
            size = math.ceil(num_rows / 8) if kind == "bitmap" else count * np.dtype(kind).itemsize
            ids, at = _ids(data[:size], kind, num_rows), size
        elif count != num_rows:
            raise ValueError(f"there must be {num_rows} rows, got {count}")
        if ids is not None and len(ids) != count:
            raise ValueError(f"there must be {count} ids, got {len(ids)}")
        quantized, stored = details.get("quantized"), details.get("stored")
        rest = data[at:]
        if stored is not None:
            rest = _entropy_decoded(rest, stored, quantized)
        return ids, _rows(rest, dtype, (count, *shape[1:]), quantized)
    except (KeyError, TypeError, IndexError) as e:
        raise ValueError(f"invalid details {details!r}") from e


def _entropy_coded(data: np.ndarray) -> np.ndarray:
    coder = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
    return np.frombuffer(coder.compress(data.data) + coder.flush(), np.uint8)


def _entropy_decoded(
    data: np.ndarray, stored: Sequence[int], sizes: Sequence[int] | None
) -> np.ndarray:
    if sizes is None or min([*stored, *sizes], default=0) < 0 or sum(stored) != len(data):
        raise ValueError(f"{sum(stored)} bytes of coded rows are expected, got {len(data)}")
    parts, start = [], 0
    for length, size in zip(stored, sizes, strict=True):
        decoder = zlib.decompressobj()
        try:
            # One byte more than expected, so that a longer content is found.
            part = decoder.decompress(data[start : start + length].tobytes(), size + 1)
        except zlib.error as e:
            raise ValueError(f"the coded rows are damaged: {e}") from e
        if len(part) != size or not decoder.eof:
            raise ValueError(f"{size} bytes of quantized rows are expected, got {len(part)}")
        parts.append(np.frombuffer(part, np.uint8))
        start += length
    return np.concatenate(parts) if parts else data


def _bitmap(ids: np.ndarray, num_rows: int) -> np.ndarray:
    present = np.zeros(num_rows, np.bool_)
    present[ids] = True
    return np.packbits(present, bitorder="little")


def _ids(data: np.ndarray, kind: str, num_rows: int) -> np.ndarray:
    if kind == "bitmap":
        return np.flatnonzero(np.unpackbits(data, count=num_rows, bitorder="little"))
    ids = data.view(kind).astype(np.int64)
    if len(ids) and not (ids.min() >= 0 and ids.max() < num_rows and (np.diff(ids) > 0).all()):
        raise ValueError(f"ids must ascend in [0, {num_rows})")
    return ids


def _rows(
    data: np.ndarray, dtype: str, shape: tuple[int, ...], quantized: Sequence[int] | None
) -> np.ndarray:
    numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
    if quantized is None:
        return data.view(numpy_dtype).reshape(shape)
    if any(size < 0 for size in quantized) or sum(quantized) != len(data):
        raise ValueError(f"{sum(quantized)} bytes of quantized rows are expected, got {len(data)}")
    out, start, row = np.empty(shape, numpy_dtype), 0, 0
    matrix = out.reshape(shape[0], -1)
    for size in quantized:
        part = core.dequantize_rows(data[start : start + size])
        if part.shape != matrix[row : row + len(part)].shape:
            raise ValueError(f"rows of {matrix.shape[1]} items are expected, got {part.shape}")
        matrix[row : row + len(part)] = part
        start, row = start + size, row + len(part)
    if row != shape[0]:
        raise ValueError(f"{shape[0]} rows are expected, got {row}")
    return out
