"""`parquet:GLOB`: Parquet files with a column `label`.

Integer and float columns are continuous, string, binary, bool and dictionary columns categorical;
list columns `ids` (integers from 0) and `values` are raw sparse features; without `values` they are
all 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from twml_ops.data.block import Array, Block, Rows
from twml_ops.data.errors import DataError, one_line
from twml_ops.data.files import (
    binary_labels,
    check_sparse,
    files_of,
    numbers_to_rows,
    sparse_dim_of,
)
from twml_ops.data.hashing import VERSION, hash_column
from twml_ops.data.schema import Schema
from twml_ops.data.source import Source, in_range

_BATCH_ROWS = 1 << 16


class ParquetSource(Source):
    """Reader of Parquet files; all must have the columns of the first."""

    def __init__(
        self, name: str, glob: str, dim: int | None = None, *, hash_version: int = VERSION
    ) -> None:
        """Only the footers are read.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            dim: the size of the id space of `ids`; None: found by a pass over the data.
            hash_version: of the category ids.

        Raises:
            FileNotFoundError: no file matches.
            DataError: a file is not Parquet, or has the wrong columns.
        """
        super().__init__(name)
        self._files = [(path, _open(path)) for path in files_of(glob)]
        first_path, first = self._files[0]
        columns = first.schema_arrow
        for path, file in self._files:
            if not file.schema_arrow.equals(columns):
                raise DataError(f"{path}: its columns differ from those of {first_path}")
        self._continuous, self._categorical, self._has_sparse = _kinds(columns, first_path)
        self._given_dim = dim
        self._hash_version = hash_version
        self._dim = dim if self._has_sparse else 0

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        if self._dim is None:
            self._dim = sparse_dim_of(self.blocks())
        return Schema(
            self._continuous,
            self._categorical,
            self._dim,
            "the label is 1",
            hash_version=self._hash_version,
        )

    def _count(self) -> int:
        return sum(file.metadata.num_rows for _, file in self._files)

    def _read(self, start: int, stop: int | None) -> Iterator[Block]:
        yield from in_range(self._blocks(), start, stop)

    def _blocks(self) -> Iterator[Block]:
        for path, file in self._files:
            row = 0
            try:
                for batch in file.iter_batches(_BATCH_ROWS):
                    yield self._block(batch, path, row)
                    row += len(batch)
            except (OSError, pa.ArrowException) as e:
                raise DataError(f"{path}: after row {row}: {one_line(e)}") from e

    def _block(self, batch: pa.RecordBatch, path: str, first_row: int) -> Block:
        def where(row: int) -> str:
            return f"{path}: row {first_row + row}"

        labels = binary_labels(_floats(batch["label"]), where)
        groups = {}
        if self._continuous:
            table = np.stack([_floats(batch[name]) for name in self._continuous], axis=1)
            groups["continuous"] = numbers_to_rows(table, self._continuous, where)
        if self._categorical:
            hashed = [
                hash_column(name, _tokens(batch[name]), version=self._hash_version)
                for name in self._categorical
            ]
            ids = np.stack(hashed, axis=1)
            groups["categorical"] = Rows.from_columns(ids, ids >= 0)
        if self._has_sparse:
            groups["sparse"] = _sparse(batch, where)
            check_sparse(groups["sparse"], self._given_dim, where)
        return Block(labels, groups)


def _open(path: str) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as e:
        raise DataError(f"{path}: not a Parquet file: {one_line(e)}") from e


def _kinds(columns: pa.Schema, path: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Names of the continuous and of the categorical columns, and whether there is `ids`."""
    types = dict(zip(columns.names, columns.types, strict=True))
    if not _is_number(types.get("label", pa.null())) and types.get("label") != pa.bool_():
        got = f"got {types['label']}" if "label" in types else f"the columns are {[*types]}"
        raise DataError(f"{path}: expected a number or bool column `label`, {got}")
    continuous, categorical = [], []
    for name, kind in types.items():
        if name == "label" or (name in ("ids", "values") and _is_list(kind)):
            continue
        if _is_number(kind):
            continuous.append(name)
        elif kind == pa.bool_() or _is_text(getattr(kind, "value_type", kind)):
            categorical.append(name)
        else:
            raise DataError(f"{path}: column {name} has type {kind}, expected number, text or bool")
    has_sparse = "ids" in types and _is_list(types["ids"])
    if not (continuous or categorical or has_sparse):
        raise DataError(f"{path}: no feature columns besides `label`")
    return tuple(continuous), tuple(categorical), has_sparse


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_number(
        kind.value_type
    )


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    return any(test(kind) for test in (*tests, pa.types.is_large_binary))


def _tokens(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()) if column.type == pa.bool_() else column


def _floats(column: pa.Array) -> Array:
    """float64 [R], NaN where missing."""
    if column.type == pa.bool_():
        column = column.cast(pa.int8())
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _sparse(batch: pa.RecordBatch, where: Callable[[int], str]) -> Rows:
    ids = batch["ids"]
    lengths = _lengths(ids)
    flat = ids.flatten()
    if flat.null_count:
        raise DataError(f"{where(0)} and on: `ids` holds a null")
    values = np.ones(len(flat), np.float32)
    if "values" in batch.schema.names:
        different = _lengths(batch["values"]) != lengths
        if different.any():
            row = int(different.argmax())
            raise DataError(f"{where(row)}: `ids` and `values` have different lengths")
        values = _floats(batch["values"].flatten()).astype(np.float32)
    return Rows.from_lengths(lengths, flat.cast(pa.int64()).to_numpy(), values)


def _lengths(lists: pa.Array) -> Array:
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy()).astype(np.int64)
