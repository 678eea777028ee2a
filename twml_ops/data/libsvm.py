"""`libsvm:PATH`: lines of `label index:value ...`, indices from 1.

The label is 0 or 1, or -1 or +1. A `#` starts a comment, blank lines are ignored, and indices
may have any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops.data.block import Array, Block, Rows
from twml_ops.data.errors import DataError, one_line, quote
from twml_ops.data.files import sparse_dim_of
from twml_ops.data.schema import Schema
from twml_ops.data.text import Chunk, TextSource

_NEGATIVE = ["0", "-1", "0.0", "-1.0", "-0"]
_POSITIVE = ["1", "+1", "1.0", "+1.0"]
_LABELS = pa.array(_NEGATIVE + _POSITIVE)
_HEXADECIMAL = re.compile(rb"[xX]")
_INDEX = r"^[0-9]{1,18}$"
_NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class LibsvmSource(TextSource):
    """Reader of the LIBSVM format; the id of a feature is its index - 1."""

    def __init__(self, name: str, path: str, dim: int | None = None) -> None:
        """Nothing is read yet.

        Args:
            name: the source as the user wrote it.
            path: the path of the file; ends in .gz if it is compressed.
            dim: the largest index allowed; None: the largest in the file, found by a pass over it.

        Raises:
            FileNotFoundError: no such file.
            DataError: the file is empty.
        """
        super().__init__(name, path)
        self._given_dim = self._dim = dim

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        if self._dim is None:
            self._dim = sparse_dim_of(self.blocks())
        return Schema((), (), self._dim, "the label is positive")

    def _count_rows(self, chunk: Chunk) -> int:
        return len(_lines(chunk)[0])

    def _parse(self, chunk: Chunk) -> Block:
        lines, numbers = _lines(chunk)
        tokens = pc.ascii_split_whitespace(lines)
        starts = tokens.offsets.to_numpy().astype(np.int64)
        words = tokens.flatten()

        def where(row: int) -> str:
            return chunk.where(int(numbers[row]))

        heads = words.take(pa.array(starts[:-1]))
        codes = pc.index_in(heads, value_set=_LABELS)
        if codes.null_count:
            row = int(np.flatnonzero(codes.is_null().to_numpy(zero_copy_only=False))[0])
            got = quote(heads[row].cast(pa.binary()).as_py())
            raise DataError(f"{where(row)}: label must be 0, 1, -1 or +1, got {got}")
        labels = (codes.to_numpy() >= len(_NEGATIVE)).astype(np.float32)

        is_entry = np.ones(len(words), bool)
        is_entry[starts[:-1]] = False
        entries = words.filter(pa.array(is_entry))
        splits = starts - np.arange(len(starts))  # one label less a row
        ids, values = self._entries(entries, lambda k: where(_row_of(k, splits)))
        return Block(labels, {"sparse": Rows(splits, ids, values)})

    def _entries(self, entries: pa.Array, where: Callable[[int], str]) -> tuple[Array, Array]:
        """Ids and values of `index:value` words."""
        pairs = pc.split_pattern(entries, ":")
        _check(pc.list_value_length(pairs).to_numpy() == 2, entries, "expected index:value", where)
        parts = pairs.flatten()
        first = np.arange(0, len(parts), 2)
        indices, numbers = parts.take(pa.array(first)), parts.take(pa.array(first + 1))
        if pc.any(pc.starts_with(numbers, "+")).as_py():  # Arrow reads no leading plus
            numbers = pc.replace_substring_regex(numbers, r"^\+([0-9.])", r"\1")
        if _HEXADECIMAL.search(indices.buffers()[2] or b""):  # Arrow reads 0x10 as 16
            _check(_matches(indices, _INDEX), entries, "the index must be an integer >= 1", where)
        try:
            ids = indices.cast(pa.int64()).to_numpy() - 1
            values = numbers.cast(pa.float32()).to_numpy()
        except pa.ArrowInvalid as e:
            _check(_matches(indices, _INDEX), entries, "the index must be an integer >= 1", where)
            _check(_matches(numbers, _NUMBER), entries, "the value must be a number", where)
            raise DataError(f"{where(0)} or after: {one_line(e)}") from None
        _check(ids >= 0, entries, "indices start at 1", where)
        _check(np.isfinite(values), entries, "the value must be finite in float32", where)
        if self._given_dim is not None:
            expected = (
                f"the index must be at most {self._given_dim}, the size of the training data's "
                "id space (name a larger one to train with: `libsvm:PATH?dim=N`)"
            )
            _check(ids < self._given_dim, entries, expected, where)
        return ids, values


def _lines(chunk: Chunk) -> tuple[pa.Array, Array]:
    """The lines that are not blank, and their 0-based numbers in the chunk."""
    text = np.frombuffer(chunk.text, np.uint8)
    ends = np.flatnonzero(text == ord("\n")) + 1
    last = int(ends[-1]) if ends.size else 0
    tail = [len(text)] if last < len(text) else []  # a last line without newline
    offsets = np.concatenate([[0], ends, tail])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(chunk.text)]
    lines = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    if b"#" in chunk.text:
        lines = pc.list_element(pc.split_pattern(lines, "#", max_splits=1), 0)
    lines = pc.ascii_trim_whitespace(lines)
    filled = pc.greater(pc.binary_length(lines), 0)
    return lines.filter(filled), np.flatnonzero(filled.to_numpy(zero_copy_only=False))


def _matches(words: pa.Array, pattern: str) -> Array:
    found = pc.match_substring_regex(words.cast(pa.binary()), pattern)
    return np.asarray(found.to_numpy(zero_copy_only=False))


def _check(good: Array, entries: pa.Array, expected: str, where: Callable[[int], str]) -> None:
    if not good.all():
        k = int(good.argmin())
        got = quote(entries[k].cast(pa.binary()).as_py())
        raise DataError(f"{where(k)}: {expected}, got {got}")


def _row_of(entry: int, splits: Array) -> int:
    return int(np.searchsorted(splits, entry, side="right")) - 1
