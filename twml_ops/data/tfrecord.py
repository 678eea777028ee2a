"""`tfrecord:GLOB`: TFRecord files of tf.Example, gzipped if they end in .gz.

The features are those of `parquet:`: number lists are continuous (at most one number an example),
bytes lists categorical (any number of tokens), `ids` and `values` raw sparse features, and `label`
one number. The first records tell which features there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

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

_BATCH_ROWS = 1 << 14
_SAMPLE = 256
_KINDS = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}


class TFRecordSource(Source):
    """Reader of TFRecord files of tf.Example."""

    def __init__(
        self, name: str, glob: str, dim: int | None = None, *, hash_version: int = VERSION
    ) -> None:
        """Only the first records are read, to learn the features.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            dim: the size of the id space of `ids`; None: found by a pass over the data.
            hash_version: of the category ids.

        Raises:
            FileNotFoundError: no file matches.
            DataError: the records are not tf.Example, or lack a label or features.
        """
        super().__init__(name)
        self._files = files_of(glob)
        self._kinds = self._learn_kinds()
        features = {n: k for n, k in self._kinds.items() if n not in ("label", "ids", "values")}
        self._continuous = tuple(n for n, k in features.items() if k != tf.string)
        self._categorical = tuple(n for n, k in features.items() if k == tf.string)
        self._given_dim = dim
        self._hash_version = hash_version
        self._dim = dim if "ids" in self._kinds else 0

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

    def _learn_kinds(self) -> dict[str, tf.DType]:
        kinds: dict[str, tf.DType] = {}
        for path, record in self._records(1, _SAMPLE):
            try:
                example = tf.train.Example.FromString(record[0])
            except Exception as e:  # protobuf's DecodeError; its module differs between versions
                raise DataError(
                    f"{path}: the first records are not tf.Example: {one_line(e)}"
                ) from e
            for feature, value in example.features.feature.items():
                if kind := value.WhichOneof("kind"):
                    kinds[feature] = _KINDS[kind]
        if kinds.get("label", tf.string) == tf.string:
            raise DataError(f"{self.name}: expected a number `label`, features are {sorted(kinds)}")
        if kinds.get("ids", tf.int64) != tf.int64:
            raise DataError(f"{self.name}: `ids` must be integers, got {kinds['ids'].name}")
        if not kinds.keys() - {"label", "values"}:
            raise DataError(f"{self.name}: no features besides `label`")
        return dict(sorted(kinds.items()))

    def _records(self, batch: int, limit: int = -1) -> Iterator[tuple[str, Array]]:
        """(file, serialized examples): of one file, `batch` at a time."""
        for path in self._files:
            codec = "GZIP" if path.endswith(".gz") else ""
            records = tf.data.TFRecordDataset(path, codec).take(limit).batch(batch)
            options = tf.data.Options()
            options.threading.private_threadpool_size = 2  # the shared pool may be waiting for us
            try:
                for part in records.with_options(options).as_numpy_iterator():
                    yield path, part
            except tf.errors.OpError as e:
                raise DataError(f"{path}: damaged TFRecord file: {one_line(e)}") from e

    def _count(self) -> int:
        return sum(len(part) for _, part in self._records(_BATCH_ROWS))

    def _read(self, start: int, stop: int | None) -> Iterator[Block]:
        yield from in_range(self._blocks(), start, stop)

    def _blocks(self) -> Iterator[Block]:
        spec = {name: tf.io.VarLenFeature(kind) for name, kind in self._kinds.items()}
        file, row = "", 0
        for path, part in self._records(_BATCH_ROWS):
            file, row = path, row if path == file else 0
            try:
                columns = tf.io.parse_example(tf.constant(part), spec)
            except tf.errors.OpError as e:
                raise DataError(f"{path}: after record {row}: {one_line(e)}") from e
            yield self._block(columns, len(part), path, row)
            row += len(part)

    def _block(
        self, columns: dict[str, tf.SparseTensor], count: int, path: str, first_row: int
    ) -> Block:
        def where(row: int) -> str:
            return f"{path}: record {first_row + row}"

        def one_number(name: str) -> Array:
            rows, numbers = _entries(columns[name])
            many = np.flatnonzero(np.bincount(rows, minlength=count) > 1)
            if many.size:
                raise DataError(f"{where(int(many[0]))}: {name} holds more than one number")
            column = np.full(count, np.nan)
            column[rows] = numbers
            return column

        labels = binary_labels(one_number("label"), where)
        groups = {}
        if self._continuous:
            table = np.stack([one_number(name) for name in self._continuous], axis=1)
            groups["continuous"] = numbers_to_rows(table, self._continuous, where)
        if self._categorical:
            groups["categorical"] = self._tokens(columns, count)
        if "ids" in self._kinds:
            groups["sparse"] = _sparse(columns, count, where)
            check_sparse(groups["sparse"], self._given_dim, where)
        return Block(labels, groups)

    def _tokens(self, columns: dict[str, tf.SparseTensor], count: int) -> Rows:
        rows, ids = [], []
        for name in self._categorical:
            row, tokens = _entries(columns[name])
            hashed = hash_column(name, pa.array(tokens, pa.binary()), version=self._hash_version)
            rows.append(row[hashed >= 0])
            ids.append(hashed[hashed >= 0])
        row = np.concatenate(rows)
        order = np.argsort(row, kind="stable")  # by row, then by column
        return Rows.from_lengths(np.bincount(row, minlength=count), np.concatenate(ids)[order])


def _entries(column: tf.SparseTensor) -> tuple[Array, Array]:
    """(row of each entry, its value), in row order."""
    return column.indices.numpy()[:, 0], column.values.numpy()


def _sparse(columns: dict[str, tf.SparseTensor], count: int, where: Any) -> Rows:
    row, ids = _entries(columns["ids"])
    lengths = np.bincount(row, minlength=count)
    if "values" not in columns:
        return Rows.from_lengths(lengths, ids, np.ones(len(ids), np.float32))
    value_row, values = _entries(columns["values"])
    different = np.bincount(value_row, minlength=count) != lengths
    if different.any():
        raise DataError(f"{where(int(different.argmax()))}: `ids` and `values` differ in length")
    return Rows.from_lengths(lengths, ids, values.astype(np.float32))
