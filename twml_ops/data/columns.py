"""Makes blocks from named columns and a schema, for the readers of Parquet, CSV and TFRecord."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops._arrow_columns import (
    SEPARATOR,
    as_tokens,
    decoded,
    floats,
    integer_texts,
    is_list,
    is_number,
    is_token,
    is_typed_kind,
    list_lengths,
    split_lists,
    time_texts,
    trimmed,
)
from twml_ops._category_hash import MISSING
from twml_ops.data.block import Array, Block, Categories, Group, Rows
from twml_ops.data.category_ids import hash_column, hash_tokens, time_parts
from twml_ops.data.errors import DataError, listed, one_line, quote
from twml_ops.data.files import (
    OF_LABELS,
    binary_labels,
    check_sparse,
    finite_numbers,
    missing_label,
)
from twml_ops.data.schema import SPARSE_IDS, SPARSE_VALUES, TIME_UNITS, Schema
from twml_ops.data.text_values import numbers_of_labels, times_of_texts

Where = Callable[[int], str]


class Columns(ABC):
    """Columns of consecutive rows. There is a method for each use that a schema can give a column.

    The methods raise `DataError` where a column is not there or cannot be read that way.
    """

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of rows, R."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is such a column."""

    @abstractmethod
    def numbers(self, name: str) -> Array:
        """One number a row: float64 [R], NaN where it is missing."""

    def labels(self, name: str) -> Array:
        """The numbers of a label, which may be text: yes and true are 1, no and false are 0."""
        return self.numbers(name)

    def times(self, name: str, day_first: bool = False) -> Array:
        """The time of each row, in seconds since 1970 or as the number that it is; NaN: none.

        `day_first`: see `Schema`.
        """
        return self.numbers(name)

    @abstractmethod
    def tokens(self, name: str) -> pa.Array:
        """One category a row: strings, binary or a dictionary of them [R], null where missing."""

    def ids(self, name: str, typed: bool = False) -> Array:
        """The ids of one category a row: int64 [R], -1 where it is missing; see `hash_column`."""
        return hash_column(name, self.tokens(name), typed=typed)

    def time_texts(self, name: str) -> pa.Array:
        """Times from which features are made: texts of `core.time_parts`, null where missing."""
        return self.tokens(name)

    @abstractmethod
    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        """Any number of categories a row: (lengths int64 [R], all of them [K])."""

    @abstractmethod
    def number_lists(self, name: str) -> tuple[Array, Array]:
        """Any number of numbers a row: (lengths int64 [R], all of them [K])."""


def block_of(columns: Columns, schema: Schema, where: Where, dim: int | None) -> Block:
    """The features and labels that a schema names.

    Args:
        columns: the rows.
        schema: the columns' uses. Columns that it does not name are left out.
        where: gives file and position of a row, for messages.
        dim: the size of the id space of raw sparse ids; None: any. They are read if the schema
            has them, or if its `sparse_dim` is still to be found (-1).

    Raises:
        DataError: a column is not there, or has a value that cannot be used.
    """
    if schema.positive_label is not None:
        labels = [_labels_of(columns, schema.labels[0], schema.positive_label, where)]
    else:
        labels = [binary_labels(columns.labels(n), where, n) for n in schema.labels]
    if not labels:
        labels = [np.zeros(columns.count, np.float32)]
    groups: dict[str, Group] = {}
    if schema.continuous:
        table = np.stack([columns.numbers(name) for name in schema.continuous], axis=1)
        groups["continuous"] = finite_numbers(table, schema.continuous, where)
    if schema.categorical:
        groups["categorical"] = _categories(columns, schema, where)
    if schema.sparse_dim:
        sparse = _sparse(columns, where)
        check_sparse(sparse, dim, where)
        groups["sparse"] = sparse
    extra = {}
    if schema.weight is not None:
        extra["weight"] = _weights(columns.numbers(schema.weight), schema.weight, where)
    if schema.time is not None:
        extra["time"] = columns.times(schema.time, schema.day_first)
    if schema.group is not None:
        extra["group"] = columns.ids(schema.group)
    return Block(labels[0] if len(labels) == 1 else np.stack(labels, axis=1), groups, extra)


def _labels_of(columns: Columns, name: str, positive: str, where: Where) -> Array:
    """float32 [R]: 1 where a label is the value of positive examples."""
    tokens = columns.tokens(name)
    if pa.types.is_dictionary(tokens.type):
        tokens = tokens.dictionary_decode()
    texts = trimmed(tokens)
    missing = pc.or_kleene(texts.is_null(), pc.equal(texts, ""))
    if pc.any(missing).as_py():
        row = missing.index(pa.scalar(True)).as_py()
        raise missing_label(where(row), name)
    # Files that hold floats write 2 as `2.0`.
    texts, positives = (
        pc.replace_substring_regex(x, r"^([-+]?[0-9]+)\.0*$", r"\1")
        for x in (texts, pa.scalar(positive, texts.type))
    )
    return np.asarray(pc.equal(texts, positives).to_numpy(zero_copy_only=False), np.float32)


def _categories(columns: Columns, schema: Schema, where: Where) -> Categories:
    ids, texts = [], {name: columns.time_texts(name) for name in schema.times}
    for name in schema.fields:
        made = schema.time_feature(name)
        if made is None:
            ids.append(columns.ids(name, schema.is_typed(name)))
        else:
            ids.append(time_ids(name, made, texts[made[0]], schema.times[made[0]], where))
    table = np.stack(ids, axis=1) if ids else np.zeros((columns.count, 0), np.int64)
    bags = {
        schema.categorical.index(name): _bag(columns, schema, name, where) for name in schema.bags
    }
    return Categories(table, bags)


def time_ids(name: str, made: tuple[str, str], texts: pa.Array, unit: str, where: Where) -> Array:
    """The ids of a feature that is made of times; -1 where the time is missing.

    Args:
        name: of the feature.
        made: the column and the part; see `Schema.time_feature`.
        texts: the times.
        unit: of integers; see `Schema.times`.
        where: gives file and position of a row, for messages.

    Raises:
        DataError: a text is no time.
    """
    column, part = made
    values = time_parts(texts, part, unit)
    wrong = values < MISSING
    if wrong.any():
        row = int(wrong.argmax())
        expected = f"a date and time in ISO form, or {unit}" if unit else "a date and time"
        raise DataError(
            f"{where(row)}: column {column}: expected {expected}, got "
            f"{quote(texts[row].as_py())}{'' if unit else _unit_hint(texts[row].as_py())}"
        )
    tokens = pa.array([str(i) for i in range(int(values.max(initial=0)) + 1)])
    ids = hash_tokens(name, tokens)[np.maximum(values, 0)]
    return np.where(values < 0, MISSING, ids)


def _unit_hint(got: str | bytes) -> str:
    """The advice in the error of a time that is a number without a unit."""
    if not str(got.decode() if isinstance(got, bytes) else got).strip("+-. 0123456789"):
        return f"; a schema says what numbers are: `unit: {'`, `'.join(TIME_UNITS)}`"
    return ""


def _bag(columns: Columns, schema: Schema, name: str, where: Where) -> Rows:
    """The categories of a bag, without missing ones."""
    lengths, tokens = columns.token_lists(name)
    typed = schema.is_typed(name)
    ids = hash_column(name, tokens, typed=typed)
    values = None
    if name in schema.bag_weights:
        column = schema.bag_weights[name]
        weight_lengths, values = columns.number_lists(column)
        _same_lengths(lengths, weight_lengths, f"{name} and {column}", where)
        values = values.astype(np.float32)
    there = ids != MISSING
    if not there.all():
        row = np.repeat(np.arange(len(lengths)), lengths)[there]
        lengths = np.bincount(row, minlength=len(lengths))
        ids, values = ids[there], values if values is None else values[there]
    rows = Rows.from_lengths(lengths, ids, values)
    if values is not None and not np.isfinite(values).all():
        row = int(np.searchsorted(rows.row_splits, (~np.isfinite(values)).argmax(), "right")) - 1
        raise DataError(f"{where(row)}: {schema.bag_weights[name]} must be finite")
    return rows


def _sparse(columns: Columns, where: Where) -> Rows:
    lengths, ids = columns.number_lists(SPARSE_IDS)
    if len(ids) and ids.dtype.kind not in "iu":
        raise DataError(f"{where(0)}: `{SPARSE_IDS}` must be integers, got {ids.dtype}")
    values = np.ones(len(ids), np.float32)
    if columns.has(SPARSE_VALUES):
        value_lengths, values = columns.number_lists(SPARSE_VALUES)
        _same_lengths(lengths, value_lengths, f"`{SPARSE_IDS}` and `{SPARSE_VALUES}`", where)
    return Rows.from_lengths(lengths, ids.astype(np.int64), values.astype(np.float32))


def _same_lengths(first: Array, second: Array, names: str, where: Where) -> None:
    different = first != second
    if different.any():
        row = int(different.argmax())
        raise DataError(
            f"{where(row)}: {names} have different lengths, {first[row]} and {second[row]}"
        )


def _weights(raw: Array, name: str, where: Where) -> Array:
    with np.errstate(over="ignore"):
        weights: Array = raw.astype(np.float32)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{where(row)}: weight {name} must be a number >= 0, and finite in float32, got "
            f"{raw[row]}"
        )
    return weights


class ArrowColumns(Columns):
    """Columns of a record batch.

    Args:
        batch: the rows.
        where: gives file and position of a row, for messages.
        separators: column → the character that separates the parts, where texts are lists.
    """

    def __init__(
        self, batch: pa.RecordBatch, where: Where, separators: Mapping[str, str] | None = None
    ) -> None:
        self._batch, self._where, self._separators = batch, where, separators or {}

    @property
    def count(self) -> int:
        """See `Columns`."""
        return len(self._batch)

    def has(self, name: str) -> bool:
        """See `Columns`."""
        return name in self._batch.schema.names

    def numbers(self, name: str) -> Array:
        """See `Columns`; bools are 0 and 1, timestamps seconds since 1970."""
        column = self._column(name)
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
            return floats(column) / 1e6
        if not is_number(kind) and kind not in (pa.bool_(), pa.null()):
            raise self._wrong(name, "a number or bool")
        return floats(column)

    def times(self, name: str, day_first: bool = False) -> Array:
        """See `Columns`; dates and times may be text."""
        texts = _texts(self._column(name))
        if texts is None:
            return self.numbers(name)
        times, good = times_of_texts(texts, day_first)
        if not good.all():
            row = int(good.argmin())
            raise DataError(
                f"{self._where(row)}: column {name}: expected a date and time in ISO form or a "
                f"number, got {quote(texts[row].as_py())}"
            )
        return times

    def labels(self, name: str) -> Array:
        """See `Columns`."""
        texts = _texts(self._column(name))
        if texts is None:
            return self.numbers(name)
        numbers, good = numbers_of_labels(texts)
        if not good.all():
            row = int(good.argmin())
            raise DataError(
                f"{self._where(row)}: expected a number, yes, no, true or false in the column "
                f"`{name}`, got {quote(texts[row].as_py())}{OF_LABELS}"
            )
        return numbers

    def tokens(self, name: str) -> pa.Array:
        """See `Columns`; integers, bools, decimals and floats that are integers are their text."""
        column = decoded(self._column(name))
        if pa.types.is_decimal(column.type):
            return column.cast(pa.string())
        if pa.types.is_floating(column.type):
            return self._integer_texts(name, column, np.arange(len(column)))
        if not is_token(column.type):
            raise self._wrong(name, "text, integers or bools")
        return as_tokens(column)

    def time_texts(self, name: str) -> pa.Array:
        """See `Columns`; the texts of timestamps, dates and numbers."""
        try:
            return time_texts(self._column(name))
        except ValueError as e:
            raise DataError(f"{self._where(0)} and on: column {name}: {e}") from None

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        """See `Columns`; texts are divided, and a single integer or bool is a list."""
        column = decoded(self._column(name))
        if is_list(column.type) and pa.types.is_floating(column.type.value_type):
            lengths = list_lengths(column)
            rows = np.repeat(np.arange(len(lengths)), lengths)
            return lengths, self._integer_texts(name, column.flatten(), rows)
        if is_list(column.type) and is_token(column.type.value_type):
            return list_lengths(column), as_tokens(column.flatten())
        if not is_token(column.type):
            raise self._wrong(name, "lists of text or integers")
        texts = _texts(column)
        if texts is not None:
            lists = split_lists(texts, self._separators.get(name, SEPARATOR))
            return list_lengths(lists), lists.flatten()
        there = column.is_valid()
        lengths = there.to_numpy(zero_copy_only=False).astype(np.int64)
        return lengths, as_tokens(column.filter(there))

    def number_lists(self, name: str) -> tuple[Array, Array]:
        """See `Columns`."""
        column = self._column(name)
        if not is_list(column.type) or not is_number(column.type.value_type):
            raise self._wrong(name, "lists of numbers")
        flat = column.flatten()
        if flat.null_count:
            raise DataError(f"{self._where(0)} and on: `{name}` holds a null")
        return list_lengths(column), np.asarray(flat.to_numpy(zero_copy_only=False))

    def _integer_texts(self, name: str, column: pa.Array, rows: Array) -> pa.Array:
        """Floats that are integers, as pandas makes them of integers with missing ones, as text.

        It is the text `3.0` that pandas writes to a CSV file.
        """
        texts, bad = integer_texts(floats(column))
        if bad is not None:
            kind = self._batch.schema.field(name).type
            raise DataError(
                f"{self._where(int(rows[bad]))}: column {name} has type {kind}, expected text, "
                f"integers, bools or floats that keep an integer, got {column[bad].as_py()}"
            )
        return texts

    def _column(self, name: str) -> pa.Array:
        if not self.has(name):
            raise DataError(
                f"{self._where(0)}: there is no column {name}, the columns are "
                f"{listed(self._batch.schema.names)}"
            )
        return self._batch.column(name)

    def _wrong(self, name: str, expected: str) -> DataError:
        kind = self._batch.schema.field(name).type
        return DataError(f"{self._where(0)}: column {name} has type {kind}, expected {expected}")


def _texts(column: pa.Array) -> pa.Array | None:
    """A column of text, without its dictionary; None if it holds anything else."""
    kind = column.type
    if is_typed_kind(kind) or not is_token(kind) or kind == pa.null():
        return None
    return column.dictionary_decode() if pa.types.is_dictionary(kind) else column


def check_types(
    columns: pa.Schema, schema: Schema, path: str, complete: Callable[[Columns], Columns]
) -> None:
    """Raises the `DataError` that reading any row would raise for the columns' types.

    `complete` adds the columns that are not in the file.
    """
    arrays = [pa.array([], kind) for kind in columns.types]
    empty = pa.RecordBatch.from_arrays(arrays, names=columns.names)
    try:
        block_of(complete(ArrowColumns(empty, lambda _: path)), schema, lambda _: path, None)
    except (pa.ArrowException, KeyError) as e:
        raise DataError(f"{path}: {one_line(e)}") from e
