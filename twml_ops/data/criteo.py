"""`criteo:PATH`: the Criteo display-ads format.

A line is 40 TAB-separated columns: label 0 or 1, 13 integers I1..I13, 26 categories C1..C26;
an empty column is a missing value.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops import core
from twml_ops._category_hash import column_key
from twml_ops.data.block import Block, Categories, Group, Numbers
from twml_ops.data.errors import DataError, quote
from twml_ops.data.schema import Schema
from twml_ops.data.text import Chunk, TextSource

_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
_COLUMNS = ("label", *_INTEGERS, *_CATEGORIES)
_KINDS = "i" * (1 + len(_INTEGERS)) + "c" * len(_CATEGORIES)
_KEYS = [column_key(name) for name in _CATEGORIES]
_SCHEMA = Schema(_INTEGERS, _CATEGORIES, 0, "the ad was clicked")

_INTEGER = r"^(-?[0-9]{1,18})?$"


class CriteoSource(TextSource):
    """Reader of the Criteo format; continuous features are the raw integers as float32."""

    def __init__(self, name: str, path: str) -> None:
        """Nothing is read yet.

        Args:
            name: the source as the user wrote it.
            path: the path of the file; ends in .gz if it is compressed.

        Raises:
            FileNotFoundError: no such file.
            DataError: the file is empty.
        """
        super().__init__(name, path)

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return _SCHEMA

    @property
    def in_order_of_time(self) -> bool:
        """True, as in the published files (Criteo Display Advertising Challenge, 2014)."""
        return True

    def _count_rows(self, chunk: Chunk) -> int:
        return chunk.count_lines()

    def _parse(self, chunk: Chunk) -> Block:
        text = np.frombuffer(chunk.text, np.uint8)
        numbers, ids, bad, _ = core.parse_delimited(text, "\t", _KINDS, _KEYS)
        labels = numbers[:, 0]
        if bad >= 0 or not np.isin(labels, (0, 1)).all():
            raise _what_is_wrong(chunk, "a line is not in the Criteo format")
        groups: dict[str, Group] = {
            "continuous": Numbers(numbers[:, 1:].astype(np.float32)),
            "categorical": Categories(ids),
        }
        return Block(labels.astype(np.float32), groups)


def _what_is_wrong(chunk: Chunk, otherwise: str) -> DataError:
    """The first line of `chunk` that is not Criteo, found by a second, slower look."""
    lines = pa.array(chunk.text.removesuffix(b"\n").split(b"\n"), pa.binary())
    columns = pc.add(pc.count_substring(lines, "\t"), 1).to_numpy()
    whole = np.append(columns == len(_COLUMNS), False)
    end = int(whole.argmin())  # the lines before it have 40 columns
    faults = []
    if end < len(lines):
        expected = f"expected {len(_COLUMNS)} TAB-separated columns"
        faults.append((end, f"{expected}, got {columns[end]}"))
    fields = pc.split_pattern(lines[:end], "\t").flatten()
    for i, name in enumerate(_COLUMNS[:14]):
        pattern, expected = (r"^[01]$", "0 or 1") if i == 0 else (_INTEGER, "an integer")
        column = fields.take(pa.array(np.arange(end) * len(_COLUMNS) + i))
        right = np.append(pc.match_substring_regex(column, pattern).to_numpy(False), False)
        if (line := int(right.argmin())) < end:
            got = quote(column[line].as_py())
            faults.append((line, f"column {i + 1} ({name}): expected {expected}, got {got}"))
    if not faults:
        return DataError(f"{chunk.where(0)} or after: {otherwise}")
    line, fault = min(faults)
    return DataError(f"{chunk.where(line)}: {fault}")
