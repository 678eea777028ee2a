"""`tfrecord:GLOB`: TFRecord files of tf.Example, gzipped if they end in .gz.

The features are those of `parquet:`. Without a schema number lists are continuous (at most one
number an example), bytes lists categorical, or bags if one of the first records of a file has
several tokens; `ids` and `values` are raw sparse features, and `label` is one number. The first
records show which features there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import tensorflow as tf

from twml_ops._category_hash import VERSION
from twml_ops.data.block import Array, Block
from twml_ops.data.columns import LABEL_HINT, Columns, as_tokens, block_of
from twml_ops.data.errors import DataError, one_line
from twml_ops.data.files import files_of, sparse_dim_of
from twml_ops.data.guess import Guess, guess_numbers, is_exact, say, warn
from twml_ops.data.schema import DEFAULT_LABELS, SPARSE_IDS, SPARSE_VALUES, Schema
from twml_ops.data.source import Source
from twml_ops.data.units import Piece, StreamPiece, Unit

_BATCH_ROWS = 1 << 14
_SAMPLE = 256
_KINDS = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}


class TFRecordSource(Source):
    """Reader of TFRecord files of tf.Example."""

    def __init__(
        self,
        name: str,
        glob: str,
        dim: int | None = None,
        *,
        schema: Schema | None = None,
        hash_version: int = VERSION,
        labels: Sequence[str] = DEFAULT_LABELS,
    ) -> None:
        """Only the first records are read, to learn the features.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            dim: the size of the id space of `ids`; None: found by a pass over the data.
            schema: the uses of the features; None: by their types.
            hash_version: of the category ids, if there is no schema.
            labels: names of the label columns, if there is no schema.

        Raises:
            FileNotFoundError: no file matches.
            DataError: the records are not tf.Example, or lack a label or features.
        """
        super().__init__(name)
        self._files = files_of(glob)
        self._kinds, several, integers = self._learn_kinds()
        self._guessed: set[str] = set()  # integers that nobody has declared to be numbers
        if schema is None:
            guesses = {
                n: guess_numbers(n, pa.array(v))
                for n, v in integers.items()
                if n not in (*labels, SPARSE_IDS, SPARSE_VALUES)
            }
            schema = self._infer(several, labels, guesses)
            schema = dataclasses.replace(schema, hash_version=hash_version)
            self._guessed = {n for n in schema.continuous if self._kinds[n] == tf.int64}
            warn(name, guesses)
        if schema.typed is None:
            names = schema.categorical
            typed = tuple(n for n in names if self._kinds.get(n) == tf.int64)
            schema = dataclasses.replace(schema, typed=typed)
        if schema.sparse_dim and dim is not None:
            schema = dataclasses.replace(schema, sparse_dim=dim)
        self._schema = schema
        self._dim = schema.sparse_dim if schema.sparse_dim > 0 else None

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        if self._schema.sparse_dim < 0:
            dim = sparse_dim_of(self.blocks())
            self._schema = dataclasses.replace(self._schema, sparse_dim=dim)
        return self._schema

    def _infer(self, several: set[str], labels: Sequence[str], guesses: dict[str, Guess]) -> Schema:
        kinds = self._kinds
        for label in labels:
            if kinds.get(label, tf.string) == tf.string:
                raise DataError(
                    f"{self.name}: expected a number `{label}`, features are {sorted(kinds)}"
                    f"{LABEL_HINT}"
                )
        if kinds.get(SPARSE_IDS, tf.int64) != tf.int64:
            raise DataError(f"{self.name}: `ids` must be integers, got {kinds[SPARSE_IDS].name}")
        if not kinds.keys() - {*labels, SPARSE_VALUES}:
            raise DataError(
                f"{self.name}: no features besides {', '.join(f'`{n}`' for n in labels)}"
            )
        rest = {n: k for n, k in kinds.items() if n not in (*labels, SPARSE_IDS, SPARSE_VALUES)}
        ids = {n for n, guess in guesses.items() if not guess.number}
        categorical = tuple(n for n, k in rest.items() if k == tf.string or n in ids)
        return Schema(
            tuple(n for n in rest if n not in categorical),
            categorical,
            -1 if SPARSE_IDS in kinds else 0,
            "the label is 1",
            bags=tuple(n for n in categorical if n in several),
            labels=tuple(labels),
        )

    def _learn_kinds(self) -> tuple[dict[str, tf.DType], set[str], dict[str, list[int]]]:
        """The types of the features of the first records, those with several, and the integers."""
        kinds: dict[str, tf.DType] = {}
        integers: dict[str, list[int]] = {}
        several = set()
        for path in self._files:
            for record in self._records(path, 1, _SAMPLE):
                try:
                    example = tf.train.Example.FromString(record[0])
                except Exception as e:  # protobuf's DecodeError; its module differs by version
                    raise DataError(
                        f"{path}: the first records are not tf.Example: {one_line(e)}"
                    ) from e
                for feature, value in example.features.feature.items():
                    if kind := value.WhichOneof("kind"):
                        kinds[feature] = _KINDS[kind]
                        if len(getattr(value, kind).value) > 1:
                            several.add(feature)
                        if kind == "int64_list":
                            integers.setdefault(feature, []).extend(value.int64_list.value)
        return dict(sorted(kinds.items())), several, integers

    def _records(self, path: str, batch: int, limit: int = -1) -> Iterator[Array]:
        """Serialized examples of a file, `batch` at a time."""
        codec = "GZIP" if path.endswith(".gz") else ""
        records = tf.data.TFRecordDataset(path, codec).take(limit).batch(batch)
        options = tf.data.Options()
        options.threading.private_threadpool_size = 2  # the shared pool may be waiting for us
        try:
            yield from records.with_options(options).as_numpy_iterator()
        except tf.errors.OpError as e:
            raise DataError(f"{path}: damaged TFRecord file: {one_line(e)}") from e

    def _make_pieces(self) -> Sequence[Piece]:
        return [StreamPiece(i, partial(self._units_of, p)) for i, p in enumerate(self._files)]

    def _units_of(self, path: str) -> Iterator[Unit]:
        row = 0
        for records in self._records(path, _BATCH_ROWS):
            size = sum(map(len, records))
            yield Unit(partial(self._parse, path, records, row), records.__len__, size)
            row += len(records)

    def _parse(self, path: str, records: Array, row: int) -> Iterator[Block]:
        schema = self._schema
        if schema.hash_version == 1:  # in which any column may hold several tokens
            schema = dataclasses.replace(schema, bags=schema.categorical)
        spec = {name: tf.io.VarLenFeature(kind) for name, kind in self._kinds.items()}
        try:
            examples = tf.io.parse_example(tf.constant(records), spec)
        except tf.errors.OpError as e:
            raise DataError(f"{path}: after record {row}: {one_line(e)}") from e

        def where(k: int) -> str:
            return f"{path}: record {row + k}"

        columns = _ExampleColumns(examples, len(records), where)
        self._warn_of_loss(columns, where)
        yield block_of(columns, schema, where, self._dim)

    def _warn_of_loss(self, columns: _ExampleColumns, where: Callable[[int], str]) -> None:
        """Warns once of each integer that was guessed to be a number and that float32 rounds."""
        for name in sorted(self._guessed):
            numbers = columns.numbers(name)
            rounded = ~is_exact(numbers)
            if rounded.any():
                row = int(rounded.argmax())
                self._guessed.discard(name)
                what = f"{where(row)}: {name} is read as a number, which loses something of"
                say(f"{what} {numbers[row]:.0f}", [name])


class _ExampleColumns(Columns):
    """Features of parsed examples."""

    def __init__(
        self, examples: dict[str, tf.SparseTensor], count: int, where: Callable[[int], str]
    ) -> None:
        self._examples, self._count, self._where = examples, count, where

    @property
    def count(self) -> int:
        return self._count

    def has(self, name: str) -> bool:
        return name in self._examples

    def numbers(self, name: str) -> Array:
        rows, numbers = self._entries(name, text=False)
        self._at_most_one(name, rows, "holds more than one number")
        column = np.full(self._count, np.nan)
        column[rows] = numbers
        return column

    def tokens(self, name: str) -> pa.Array:
        rows, tokens = self._entries(name)
        what = "holds more than one category: declare it as a bag in a schema"
        self._at_most_one(name, rows, what)
        places = np.full(self._count, -1)
        places[rows] = np.arange(len(rows))
        return _tokens(tokens).take(pa.array(places, mask=places < 0))

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        rows, tokens = self._entries(name)
        return np.bincount(rows, minlength=self._count), _tokens(tokens)

    def number_lists(self, name: str) -> tuple[Array, Array]:
        rows, numbers = self._entries(name, text=False)
        return np.bincount(rows, minlength=self._count), numbers

    def _entries(self, name: str, text: bool = True) -> tuple[Array, Array]:
        """(row of each entry, its value), in row order."""
        if name not in self._examples:
            raise DataError(
                f"{self._where(0)}: there is no feature {name} in the first records, the features "
                f"are {sorted(self._examples)}"
            )
        column = self._examples[name]
        if column.dtype == (tf.float32 if text else tf.string):
            expected = "text or integers" if text else "numbers"
            raise DataError(
                f"{self._where(0)}: {name} has type {column.dtype.name}, expected {expected}"
            )
        return column.indices.numpy()[:, 0], column.values.numpy()

    def _at_most_one(self, name: str, rows: Array, otherwise: str) -> None:
        many = np.flatnonzero(np.bincount(rows, minlength=self._count) > 1)
        if many.size:
            raise DataError(f"{self._where(int(many[0]))}: {name} {otherwise}")


def _tokens(values: Array) -> pa.Array:
    return as_tokens(pa.array(values, pa.binary() if values.dtype == object else pa.int64()))
