"""Arrow columns as examples: what readers of Parquet files and of tables in memory share.

A table in memory gives the same columns, examples and order as the Parquet file that pyarrow or
pandas would write from it. Its pieces correspond to the row groups of that file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops._arrow_columns import is_day, is_typed_kind
from twml_ops.data.block import Block
from twml_ops.data.column_uses import NO_USES, ColumnUses, schema_of, warn
from twml_ops.data.columns import ArrowColumns, Columns, Where, block_of, check_types
from twml_ops.data.files import with_sparse_dim
from twml_ops.data.infer import NOTHING, Finding, look_at, unusable
from twml_ops.data.schema import Schema
from twml_ops.data.source import Source
from twml_ops.data.text_values import first_rounded, is_exact, say
from twml_ops.data.units import Piece, SingleUnit, Unit

BATCH_ROWS = 1 << 16
"""Rows that are parsed together, and the first rows that say what columns are."""
_GROUP_ROWS = 1 << 20  # of a row group that pyarrow writes
Complete = Callable[[Columns], Columns]


class ArrowSource(Source):
    """A reader whose examples are in Arrow columns. It sets `_schema` when it is made."""

    _schema: Schema

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._findings: Mapping[str, Finding] = {}
        self._guessed: set[str] = set()  # columns of numbers of which nothing has been said

    @property
    def findings(self) -> Mapping[str, Finding]:
        """See `Source`."""
        return self._findings

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        self._schema = with_sparse_dim(self._schema, self.blocks)
        return self._schema

    @property
    def _dim(self) -> int | None:
        """The size of the id space of raw sparse ids; None: still to be found."""
        return self._schema.sparse_dim if self._schema.sparse_dim > 0 else None

    def _chosen_schema(
        self,
        schema: Schema | None,
        uses: ColumnUses,
        where: str,
        names: Sequence[str],
        types: Callable[[], pa.Schema],
        look: Callable[[pa.Schema], dict[str, Finding]],
    ) -> Schema:
        """The given schema, or one made from what the columns look like, with `typed` filled in.

        Args:
            schema: the uses of the columns; None: by their types.
            uses: what the user says of columns, if there is no schema.
            where: the first file, or the name of the table, for messages.
            names: the columns that are read as they are.
            types: the types of all columns.
            look: what columns of these types look like.

        Raises:
            DataError: see `schema_of`.
        """
        if schema is None:
            schema, self._findings = schema_of(look(types()), uses, where)
            guessed = ({*schema.continuous} & {*names}) - {*uses.numeric}
            self._guessed = {n for n in guessed if self._findings[n].sure}
            warn(self.name, self._findings)
        if schema.typed is None:
            columns = types()
            kinds = dict(zip(columns.names, columns.types, strict=True))
            typed = tuple(
                n for n in schema.categorical_columns if n in kinds and is_typed_kind(kinds[n])
            )
            schema = dataclasses.replace(schema, typed=typed)
        return schema

    def _block(
        self, batch: pa.RecordBatch, where: Where, complete: Complete = lambda columns: columns
    ) -> Block:
        """The examples of a batch; `complete` adds the columns that are not in it."""
        for name in sorted(self._guessed):
            rounded = first_rounded(batch.column(name))
            if rounded is not None:
                self._guessed.discard(name)
                got = batch.column(name)[rounded].as_py()
                what = f"{where(rounded)}: column {name} is read as numbers, which lose"
                say(f"{what} something of {got}", [name])
        columns = complete(ArrowColumns(batch, where, self._schema.separators))
        return block_of(columns, self._schema, where, self._dim)


def finding_of(
    name: str,
    kind: pa.DataType,
    values: pa.Array | None,
    limits: Callable[[], Iterable[int]],
    *,
    is_dictionary: bool = False,
    may_be_numbers: bool = False,
) -> Finding:
    """What a column without a schema is taken for.

    Args:
        name: of the column.
        kind: its type.
        values: a sample of its values; None: there are none.
        limits: the smallest and the largest integers of the column, or of its parts.
        is_dictionary: whether it was a dictionary where it was written.
        may_be_numbers: whether texts can be numbers.
    """
    if values is None:
        values = pa.nulls(0, kind)
    look = look_at(name, values, may_be_numbers=may_be_numbers) or _empty(kind)
    if is_dictionary and look.kind != "bag":
        look = look._replace(kind="categorical", why="a dictionary where it was written")
        return look._replace(sure=True, by_type=True, typed=is_typed_kind(kind))
    if look.kind == "continuous" and pa.types.is_integer(kind):
        for limit in limits():
            if not is_exact(np.array([limit]))[0]:
                why = f"as a number, {limit} would be rounded"
                look = look._replace(kind="categorical", why=why, by_type=False, typed=True)
    return look


def _empty(kind: pa.DataType) -> Finding:
    """What a column is whose first rows have no value: its type alone decides."""
    if kind == pa.null():
        return NOTHING
    return Finding("categorical", f"the type {kind}, without a value", 0, 1.0, by_type=True)


class TableSource(ArrowSource):
    """Reader of a table in memory."""

    def __init__(
        self,
        name: str,
        table: pa.Table,
        *,
        schema: Schema | None = None,
        uses: ColumnUses = NO_USES,
    ) -> None:
        """Without a schema the first rows, and all integers, are looked at.

        Args:
            name: the name of the table, for messages.
            table: the examples. Their columns have different names.
            schema: the uses of the columns; None: by their types.
            uses: what the user says of columns, if there is no schema.

        Raises:
            DataError: the table lacks columns, or has columns of the wrong types.
        """
        super().__init__(name)
        self._schema = self._chosen_schema(
            *(schema, uses, name, table.column_names, lambda: table.schema),
            partial(_look, table),
        )
        check_types(table.schema, self._schema, name, lambda columns: columns)
        columns = {*self._schema.columns}
        used = [n for n in table.column_names if n in columns]
        self._table = table.select(used or table.column_names[:1])

    def _make_pieces(self) -> Sequence[Piece]:
        pieces: list[Piece] = []
        for row in range(0, len(self._table), _GROUP_ROWS):
            part = self._table.slice(row, _GROUP_ROWS)
            place = f"{self.name}: from row {row} on"
            unit = Unit(partial(self._blocks, part, row), part.__len__, part.nbytes, place)
            pieces.append(SingleUnit(len(pieces), unit.with_rows(len(part))))
        return pieces

    def _blocks(self, part: pa.Table, first_row: int) -> Iterator[Block]:
        for start in range(0, len(part), BATCH_ROWS):

            def where(row: int, first: int = first_row + start) -> str:
                return f"{self.name}: row {first + row}"

            yield self._block(_batch(part.slice(start, BATCH_ROWS)), where)


def _batch(rows: pa.Table) -> pa.RecordBatch:
    """A table of few rows as one batch."""
    columns = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _look(table: pa.Table, columns: pa.Schema) -> dict[str, Finding]:
    """What the columns of a table are, by its first rows and the limits of its integers."""
    rows = _batch(table.slice(0, BATCH_ROWS))

    def limits(name: str) -> Iterator[int]:
        found = pc.min_max(table.column(name)).as_py()
        yield from (n for n in found.values() if n is not None)

    looks = {}
    for name, kind in zip(columns.names, columns.types, strict=True):
        usable = unusable(name, kind) is None or is_day(kind)
        values = rows.column(name) if usable else None
        is_dictionary = pa.types.is_dictionary(kind)
        looks[name] = finding_of(
            name, kind, values, partial(limits, name), is_dictionary=is_dictionary
        )
    return looks
