"""`tfrecord:GLOB`: TFRecord files of tf.Example, gzipped if they end in .gz.

The features are the same as with `parquet:`. Without a schema number lists are continuous (at most
one number an example), bytes lists categorical, or bags if a record has several tokens; `ids` and
`values` are raw sparse features, and `label` is one number. Then all records are read once to find
the features.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from twml_ops._arrow_columns import as_tokens, list_lengths, split_lists
from twml_ops.data.block import Array, Block
from twml_ops.data.column_uses import NO_USES, ColumnUses, schema_of, warn
from twml_ops.data.columns import Columns, block_of
from twml_ops.data.errors import DataError, cannot_read, one_line, quote
from twml_ops.data.files import OF_LABELS, File, files_of, with_sparse_dim
from twml_ops.data.infer import NOTHING, Finding, look_at
from twml_ops.data.partitions import Partitions
from twml_ops.data.schema import SPARSE_IDS, SPARSE_VALUES, Schema
from twml_ops.data.source import Source
from twml_ops.data.text import decompressed_size
from twml_ops.data.text_values import is_exact, numbers_of_labels, say, times_of_texts
from twml_ops.data.units import Piece, StreamPiece, Unit

_BATCH_ROWS = 1 << 14
_SAMPLE = 256
_FRAME_BYTES = 16  # of a record in a file: its length and two checksums
_KINDS = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}
_LISTS = ("FloatList", "Int64List", "BytesList")
_ARROW = {tf.float32: pa.float32(), tf.int64: pa.int64(), tf.string: pa.string()}
_TENSORS = {arrow: kind for kind, arrow in _ARROW.items()}


class TFRecordSource(Source):
    """Reader of TFRecord files of tf.Example."""

    def __init__(
        self,
        name: str,
        glob: str,
        dim: int | None = None,
        *,
        schema: Schema | None = None,
        uses: ColumnUses = NO_USES,
    ) -> None:
        """All records are read, to learn the features; with a schema only until they are found.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            dim: the size of the id space of `ids`; None: found by a pass over the data.
            schema: the uses of the features; None: by their types.
            uses: what the user says of columns, if there is no schema.

        Raises:
            FileNotFoundError: no file matches.
            DataError: the records are not tf.Example, or lack a label or features.
        """
        super().__init__(name)
        self._files = files_of(glob)
        if self._files[0].is_remote:
            raise DataError(
                f"{name}: TFRecord files are read on this machine only; copy them, or mount the "
                "bucket as a folder"
            )
        self._partitions = Partitions(glob, self._files)
        self._unit_rows: dict[str, list[int]] = {}  # of the files that were read to the end
        self._kinds, several, samples = self._learn_kinds(schema)
        self._guessed: set[str] = set()  # integers that nobody has declared to be numbers
        self._findings: Mapping[str, Finding] = {}
        if schema is None:
            looks = self._look(several, samples)
            schema, self._findings = schema_of(looks, uses, self.name)
            guessed = {n for n in schema.continuous if n not in uses.numeric}
            self._guessed = {n for n in guessed if self._kinds.get(n) == tf.int64}
            warn(name, self._findings)
        if schema.typed is None:
            kinds = self._folder_kinds() | self._kinds
            typed = tuple(n for n in schema.categorical_columns if kinds.get(n) == tf.int64)
            schema = dataclasses.replace(schema, typed=typed)
        if schema.sparse_dim and dim is not None:
            schema = dataclasses.replace(schema, sparse_dim=dim)
        self._schema = schema
        self._dim = schema.sparse_dim if schema.sparse_dim > 0 else None

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        self._schema = with_sparse_dim(self._schema, self.blocks)
        return self._schema

    @property
    def findings(self) -> Mapping[str, Finding]:
        """See `Source`."""
        return self._findings

    def column_types(self) -> dict[str, pa.DataType]:
        """See `Source`; a feature with several values in a record is a list in all of them."""
        kinds, several, _ = self._learn_kinds(None)
        types: dict[str, pa.DataType] = {}
        for name, kind in kinds.items():
            types[name] = pa.list_(_ARROW[kind]) if name in several else _ARROW[kind]
        return types | self._partitions.types([*kinds], above=True)

    def raw_columns(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """See `Source`; a feature without a value is null."""
        of_folders = self._partitions.types([*self._kinds], above=True)
        of_files = {n: t for n, t in types.items() if n not in of_folders}
        kinds = {n: t.value_type if pa.types.is_list(t) else t for n, t in of_files.items()}
        spec = {n: tf.io.VarLenFeature(_TENSORS[kind]) for n, kind in kinds.items()}
        for file in self._files:
            path, row = file.path, 0
            for records in self._records(file, _BATCH_ROWS):
                try:
                    parsed = tf.io.parse_example(tf.constant(records), spec) if spec else {}
                    columns = {n: _raw(parsed[n], t, len(records)) for n, t in of_files.items()}
                    columns = columns or {"": pa.nulls(len(records))}
                    batch = pa.RecordBatch.from_pydict(columns)
                    yield self._partitions.filled(batch, path, pa.schema(types.items()))
                except (tf.errors.OpError, pa.ArrowException) as e:
                    raise DataError(f"{path}: after record {row}: {one_line(e)}") from e
                row += len(records)

    def _look(self, several: set[str], samples: dict[str, pa.Array]) -> dict[str, Finding]:
        """What the features are, by their types and some of their values."""
        if self._kinds.get(SPARSE_IDS, tf.int64) != tf.int64:
            raise DataError(
                f"{self.name}: `ids` must be integers, got {self._kinds[SPARSE_IDS].name}"
            )
        looks = {}
        for name, kind in self._kinds.items():
            if name in (SPARSE_IDS, SPARSE_VALUES):
                looks[name] = Finding("sparse", f"lists called `{name}`", by_type=True)
            elif name in several and kind != tf.float32:
                typed, distinct = kind == tf.int64, len(samples[name].unique())
                looks[name] = Finding("bag", "several values", distinct, by_type=True, typed=typed)
            elif kind == tf.float32:
                looks[name] = Finding("continuous", "floats", by_type=True)
            else:
                looks[name] = look_at(name, samples[name]) or NOTHING
        for name, values in self._partitions.samples(without=[*self._kinds]).items():
            looks[name] = look_at(name, values, may_be_numbers=True) or NOTHING
        return looks

    def _folder_kinds(self) -> dict[str, tf.DType]:
        """The types of the columns that only folders have."""
        types = self._partitions.types(without=[*self._kinds])
        return {
            n: tf.int64 if pa.types.is_integer(kind) else tf.string for n, kind in types.items()
        }

    def _learn_kinds(
        self, schema: Schema | None
    ) -> tuple[dict[str, tf.DType], set[str], dict[str, pa.Array]]:
        """The types of the features, those with several values, and some values of them.

        They are of all features that there are, or, with a schema, at least of the ones that it
        names.
        """
        kinds: dict[str, tf.DType] = {}
        samples: dict[str, pa.Array] = {}
        several: set[str] = set()
        for file in self._files:
            for k, records in enumerate(self._records(file, _SAMPLE, _SAMPLE)):
                self._learn(file.path, k * _SAMPLE, records, kinds, several, samples)
        inside = [n for n in (schema.columns if schema else ()) if not self._in_all_folders(n)]
        if schema is None or not kinds.keys() >= {*inside}:
            for file in self._files:
                row, counts = 0, []
                for records in self._records(file, _BATCH_ROWS):
                    self._learn(file.path, row, records, kinds, several, samples)
                    counts.append(len(records))
                    row += len(records)
                self._unit_rows[file.path] = counts
        return dict(sorted(kinds.items())), several, samples

    def _in_all_folders(self, name: str) -> bool:
        return all(self._partitions.have(file.path, name) for file in self._files)

    def _learn(
        self,
        path: str,
        row: int,
        records: Array,
        kinds: dict[str, tf.DType],
        several: set[str],
        samples: dict[str, pa.Array],
    ) -> None:
        """Adds the features of records, of which the first is number `row` of the file."""
        try:
            found = _features_of(records)
        except tf.errors.OpError as e:
            what = f"{path}: after record {row}: the records are not tf.Example: {one_line(e)}"
            raise DataError(what) from e
        for name, kind, has_several in found:
            if kinds.setdefault(name, kind) != kind:
                raise DataError(
                    f"{path}: after record {row}: {name} has the type {kind.name}, in earlier "
                    f"records it has {kinds[name].name}"
                )
            if has_several:
                several.add(name)
            if kind != tf.float32 and name not in samples:
                column = tf.io.parse_example(
                    tf.constant(records), {name: tf.io.VarLenFeature(kind)}
                )[name]
                samples[name] = pa.array(column.values.numpy())

    def _records(self, file: File, batch: int, limit: int = -1) -> Iterator[Array]:
        """Serialized examples of a file, `batch` at a time."""
        path = file.path
        file.check()
        codec = "GZIP" if path.endswith(".gz") else ""
        records = tf.data.TFRecordDataset(path, codec).take(limit).batch(batch)
        options = tf.data.Options()
        options.threading.private_threadpool_size = 2  # the shared pool may be waiting for us
        size = 0
        try:
            for some in records.with_options(options).as_numpy_iterator():
                size += sum(map(len, some)) + _FRAME_BYTES * len(some)
                file.check()
                yield some
        except tf.errors.OpError as e:
            file.check()
            if "Too many open files" in str(e):
                raise cannot_read(path, OSError(errno.EMFILE, str(e))) from e
            raise DataError(f"{path}: damaged TFRecord file: {one_line(e)}") from e
        if limit < 0:
            _check_end(file, size)

    def _make_pieces(self) -> Sequence[Piece]:
        pieces = [StreamPiece(i, partial(self._units_of, f)) for i, f in enumerate(self._files)]
        for file, piece in zip(self._files, pieces, strict=True):
            if file.path in self._unit_rows:
                piece.remember_unit_rows(self._unit_rows[file.path])
        return pieces

    def _units_of(self, file: File) -> Iterator[Unit]:
        path, row = file.path, 0
        for records in self._records(file, _BATCH_ROWS):
            size = sum(map(len, records))
            parse = partial(self._parse, path, records, row)
            unit = Unit(parse, records.__len__, size, f"{path}: from record {row} on")
            yield unit.with_rows(len(records))
            row += len(records)

    def _parse(self, path: str, records: Array, row: int) -> Iterator[Block]:
        schema = self._schema
        spec = {name: tf.io.VarLenFeature(kind) for name, kind in self._kinds.items()}
        try:
            examples = tf.io.parse_example(tf.constant(records), spec)
        except tf.errors.OpError as e:
            raise DataError(f"{path}: after record {row}: {one_line(e)}") from e

        def where(k: int) -> str:
            return f"{path}: record {row + k}"

        columns = _ExampleColumns(examples, len(records), where, schema.separators)
        self._warn_of_loss(columns, where)
        yield block_of(self._partitions.added_to(columns, path), schema, where, self._dim)

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
        self,
        examples: dict[str, tf.SparseTensor],
        count: int,
        where: Callable[[int], str],
        separators: Mapping[str, str],
    ) -> None:
        self._examples, self._count, self._where = examples, count, where
        self._separators = separators

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

    def times(self, name: str, day_first: bool = False) -> Array:
        if name not in self._examples or self._examples[name].dtype != tf.string:
            return self.numbers(name)
        texts = self.tokens(name)
        times, good = times_of_texts(texts, day_first)
        if not good.all():
            row = int(good.argmin())
            raise DataError(
                f"{self._where(row)}: expected a date and time in ISO form, or a number, in "
                f"`{name}`, got {quote(texts[row].as_py())}"
            )
        return times

    def labels(self, name: str) -> Array:
        if name not in self._examples or self._examples[name].dtype != tf.string:
            return self.numbers(name)
        texts = self.tokens(name)
        numbers, good = numbers_of_labels(texts)
        if not good.all():
            row = int(good.argmin())
            raise DataError(
                f"{self._where(row)}: expected a number `{name}`, or yes, no, true or false, got "
                f"{quote(texts[row].as_py())}{OF_LABELS}"
            )
        return numbers

    def tokens(self, name: str) -> pa.Array:
        rows, tokens = self._entries(name)
        what = "holds more than one category: declare it as a bag in a schema"
        self._at_most_one(name, rows, what)
        places = np.full(self._count, -1)
        places[rows] = np.arange(len(rows))
        return _tokens(tokens).take(pa.array(places, mask=places < 0))

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        rows, tokens = self._entries(name)
        counts = np.bincount(rows, minlength=self._count)
        if name not in self._separators or self._examples[name].dtype != tf.string:
            return counts, _tokens(tokens)
        # The text of a row with one may be a list, as CSV files have it.
        alone = counts[rows] == 1
        entries = _tokens(tokens)
        lists = split_lists(entries.filter(pa.array(alone)), self._separators[name])
        lengths = np.ones(len(rows), np.int64)
        lengths[alone] = list_lengths(lists)
        parts = [p.cast(pa.binary()) for p in (lists.flatten(), entries.filter(pa.array(~alone)))]
        order = np.argsort(np.repeat(~alone, lengths), kind="stable")  # in it, lists come first
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        counts = np.bincount(rows, lengths, self._count).astype(np.int64)
        return counts, pa.concat_arrays(parts).take(pa.array(places))

    def number_lists(self, name: str) -> tuple[Array, Array]:
        rows, numbers = self._entries(name, text=False)
        return np.bincount(rows, minlength=self._count), numbers

    def _entries(self, name: str, text: bool = True) -> tuple[Array, Array]:
        """(row of each entry, its value), in row order."""
        if name not in self._examples:
            raise DataError(
                f"{self._where(0)}: there is no feature {name} in the records, the features "
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


def _raw(entries: tf.SparseTensor, kind: pa.DataType, count: int) -> pa.Array:
    """A feature of `count` records as a column, null where a record has none."""
    rows, values = entries.indices.numpy()[:, 0], entries.values.numpy()
    items = pa.array(values, pa.binary()).cast(pa.string()) if values.dtype == object else values
    if not pa.types.is_list(kind):
        places = np.full(count, -1)
        places[rows] = np.arange(len(rows))
        return pa.array(items).take(pa.array(places, mask=places < 0))
    lengths = np.bincount(rows, minlength=count)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    # The beginning of a null list is null.
    offsets = pa.array(ends, mask=np.append(lengths == 0, False))
    return pa.ListArray.from_arrays(offsets, pa.array(items))


def _check_end(file: File, size: int) -> None:
    """Raises a `DataError` if a file has more than the `size` bytes that were read, or no end.

    TensorFlow takes a truncated .gz, and less than the header of a record, for the end of the
    records. The last four bytes of a whole .gz are its size, or that of its last part.
    """
    if not file.path.endswith(".gz"):
        if file.size != size:
            what = f"damaged or truncated: {size} of {file.size} bytes are whole records"
            raise DataError(f"{file}: {what}")
        return
    with file.reading() as stream:
        stream.seek(max(0, file.size - 4))
        if int.from_bytes(stream.read(), "little") == size % 2**32:
            return
    whole = decompressed_size(file)
    if whole != size:
        raise DataError(f"{file}: damaged .gz: {size} of {whole} bytes can be read")


def _tokens(values: Array) -> pa.Array:
    return as_tokens(pa.array(values, pa.binary() if values.dtype == object else pa.int64()))


def _features_of(records: Array) -> list[tuple[str, tf.DType, bool]]:
    """The features of serialized examples: name, type, and whether one has several values.

    A feature is there once for each of its types.

    Raises:
        tf.errors.OpError: they are not tf.Example.
    """
    _, features = _items(tf.constant(records), "Example", "features", tf.string)
    _, entries = _items(features, "Features", "feature", tf.string)
    _, names, values = _decoded(entries, "Features.FeatureEntry", ("key", "value"), tf.string)
    sizes, *lists = _decoded(values[:, 0], "Feature", tuple(_KINDS), tf.string)
    encoded = pa.array(names[:, 0].numpy(), pa.string()).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    found = []
    for k, (message, kind) in enumerate(zip(_LISTS, _KINDS.values(), strict=True)):
        there = sizes[:, k] > 0
        counts, _ = _items(tf.boolean_mask(lists[k][:, 0], there), message, "value", kind)
        several = np.zeros(len(encoded.dictionary), bool)
        several[codes[there][counts > 1]] = True
        for code in np.unique(codes[there]):
            found.append((encoded.dictionary[int(code)].as_py(), kind, bool(several[code])))
    return found


def _items(
    messages: tf.Tensor, message: str, field: str, kind: tf.DType
) -> tuple[Array, tf.Tensor]:
    """The number of values of a repeated field in each message, and all values."""
    sizes, values = _decoded(messages, message, (field,), kind)
    return sizes[:, 0], tf.boolean_mask(values, tf.sequence_mask(sizes[:, 0], values.shape[1]))


def _decoded(
    messages: tf.Tensor, message: str, fields: tuple[str, ...], kind: tf.DType
) -> tuple[Any, ...]:
    """Values of fields: how many each message has, [M, F], and the values, each [M, >= 1]."""
    if not messages.shape[0]:
        return np.zeros((0, len(fields)), np.int32), *[tf.zeros([0, 1], kind)] * len(fields)
    decoded = tf.io.decode_proto(messages, f"tensorflow.{message}", fields, [kind] * len(fields))
    some = [v if v.shape[1] else tf.zeros([v.shape[0], 1], kind) for v in decoded.values]
    return decoded.sizes.numpy(), *some
