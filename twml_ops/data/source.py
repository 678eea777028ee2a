"""What every reader is: a schema, pieces of examples, and `tf.data` batches made of them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twml_ops.data import batches, order
from twml_ops.data.block import Block
from twml_ops.data.errors import DataError
from twml_ops.data.infer import Finding
from twml_ops.data.layouts import LayoutName, named_layout
from twml_ops.data.order import UnitOfPiece
from twml_ops.data.position import InputPosition
from twml_ops.data.row_keys import KeyedPiece
from twml_ops.data.schema import Schema
from twml_ops.data.units import (
    DealtPiece,
    Part,
    Piece,
    RowRangePieces,
    StoredPiece,
    in_range,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import tensorflow as tf

CACHE_BYTES = 1 << 30


class Source(ABC):
    """Labelled examples, read in order and as often as asked.

    A pass over a source whose parsed form takes at most `CACHE_BYTES` is kept in memory, so only
    the first epoch parses.

    Args:
        name: the source as the user wrote it.

    Attributes:
        name: the source as the user wrote it.
    """

    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        self._parsed_bytes = 0
        self._num_examples: int | None = None
        self._made: Sequence[Piece] | None = None
        self._cache: Sequence[Piece] | None = None
        self._error: Exception | None = None
        self._watchers: list[Callable[[Block], object]] = []

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The features. May take a pass over the data, once.

        Raises:
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read.
        """

    @property
    def in_order_of_time(self) -> bool:
        """Whether the examples are known to be in order of time."""
        return False

    @property
    def findings(self) -> Mapping[str, Finding]:
        """What each column is taken for and why; empty if a schema or the format says it."""
        return {}

    def column_types(self) -> dict[str, pa.DataType]:
        """The types of the columns that `raw_columns` reads.

        May take a pass over the data.

        Returns:
            Type by name; nothing if the format has no named columns.

        Raises:
            DataError: the data cannot be read.
        """
        return {}

    def raw_columns(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Reads columns as they are written, whether the schema uses them or not.

        Args:
            types: some of `column_types`.

        Yields:
            The columns of all examples in the order of the files, in batches of any size.

        Raises:
            DataError: the data cannot be read.
        """
        raise DataError(f"{self.name}: this kind of data has no named columns")

    def own_validation(self) -> tuple[Source, Source] | None:
        """Divides training data as the source itself is divided into training and evaluation data.

        Returns:
            (the examples to fit on, the examples for validation); None if the source defines no
            division.

        Raises:
            ValueError: a part would be empty.
        """
        return None

    @abstractmethod
    def _make_pieces(self) -> Sequence[Piece]:
        """The pieces that the examples are read in; called once."""

    def _pieces(self) -> Sequence[Piece]:
        """The pieces that the examples are read in, from memory if they are kept there."""
        if self._cache is not None:
            return self._cache
        if self._made is None:
            self._made = self._keyed(self._make_pieces())
        return self._made

    def _keyed(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """The pieces, whose examples have keys: `ROW_KEYS`."""
        return [KeyedPiece(piece, i, self._count_parsed) for i, piece in enumerate(pieces)]

    def num_examples(self) -> int:
        """Counts the examples. May take a pass over the data, once.

        Returns:
            The number of examples.

        Raises:
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read.
        """
        if self._num_examples is None:
            self._num_examples = sum(piece.rows() for piece in self._pieces())
        return self._num_examples

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """Reads examples in order, in blocks of any size.

        Args:
            start: the first example, from 0.
            stop: one after the last example; None: to the end.

        Yields:
            The blocks.

        Raises:
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read; names the file and the line.
        """
        if stop is None or stop > start:
            blocks = self._parsed(self._units(None), start)
            yield from in_range(blocks, 0, None if stop is None else stop - start)

    def sample(self, rows: int, seed: int | None = None) -> Block | None:
        """Reads the first examples of an epoch.

        Args:
            rows: number of examples to read at most.
            seed: the examples are the first ones of `dataset(shuffle=True, seed=seed)`; None: in
                the order of the files.

        Returns:
            The examples; None if there are none.

        Raises:
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read; names the file and the line.
        """
        blocks = self._epoch(InputPosition(seed), max(rows, 1), True) if rows > 0 else iter(())
        found = list(in_range(blocks, 0, rows))
        return Block.concat(found) if sum(map(len, found)) else None

    def _units(self, shuffle: tuple[int, int] | None) -> Iterator[UnitOfPiece]:
        """The units in order, or in the random order given by (seed, epoch)."""
        if shuffle is None:
            return order.in_order(self._pieces())
        return order.shuffled(self._pieces(), *shuffle)

    def _parsed(self, units: Iterator[UnitOfPiece], skip: int) -> Iterator[Block]:
        """The examples of the units without the first `skip`; a whole pass is kept if it fits."""
        if self._cache is not None or skip:
            for _, unit in order.without_first(units, skip):
                yield from unit.blocks()
            return
        pieces = self._pieces()
        rows: list[list[int]] = [[] for _ in pieces]
        kept: list[list[list[Block]]] = [[] for _ in pieces]
        sizes: list[list[int]] = [[] for _ in pieces]
        fits, size = True, 0
        for index, unit in units:
            rows[index].append(0)
            kept[index].append([])
            sizes[index].append(unit.size)
            for block in unit.blocks():
                rows[index][-1] += len(block)
                size += block.nbytes
                if size > CACHE_BYTES:
                    fits, kept = False, [[] for _ in pieces]
                elif fits:
                    kept[index][-1].append(block)
                yield block
        for piece, counts in zip(pieces, rows, strict=True):
            piece.remember_unit_rows(counts)
        self._num_examples = sum(map(sum, rows))
        if fits:
            self._cache = [
                StoredPiece(piece.number, blocks, bytes_of_units)
                for piece, blocks, bytes_of_units in zip(pieces, kept, sizes, strict=True)
            ]

    @property
    def parsed_bytes(self) -> int:
        """The bytes of the files that this source and its parts have parsed so far.

        These are decompressed text, records, and the columns that are read of Parquet files.
        Examples that are kept in memory are parsed once.
        """
        return self._parsed_bytes

    def _count_parsed(self, size: int) -> None:
        self._parsed_bytes += size

    def num_bytes(self) -> int:
        """Counts the bytes that a pass over the source parses, see `parsed_bytes`.

        May take a pass over compressed files and records, without parsing them.

        Returns:
            The number of bytes.

        Raises:
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read.
        """
        units = (unit for piece in self._pieces() for unit in piece.units())
        return sum(unit.size for unit in units if unit.rows())

    def _epoch(
        self, position: InputPosition, batch_size: int, with_features: bool
    ) -> Iterator[Block]:
        """The examples of an epoch in its order, from a position on."""
        if position.seed is None:
            yield from self.blocks(position.examples)
            return
        seed, epoch = position.seed, position.epoch
        window, start = divmod(position.examples, order.WINDOW_ROWS)
        blocks = self._parsed(self._units((seed, epoch)), position.examples - start)
        if not with_features:
            blocks = (dataclasses.replace(block, groups={}) for block in blocks)
        yield from order.shuffled_windows(blocks, seed, epoch, window, start, batch_size)

    def dataset(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_remainder: bool = False,
        layout: LayoutName = "ragged",
        position: InputPosition | None = None,
        repeat: bool = False,
    ) -> tf.data.Dataset:
        """One epoch of batches, or all epochs in a row.

        Args:
            batch_size: examples in a batch, B; the last batch may hold fewer.
            shuffle: whether to visit the examples in random order. The units of all files (row
                groups, chunks of text, batches of records) are visited in random order, and the
                examples are permuted within windows of about half a million. Units of a
                compressed file stay in order and alternate at random with units of other files.
            seed: the n-th iteration over the returned dataset has the order given by (seed, n),
                whatever the batch size.
            drop_remainder: leave out a last batch of fewer than `batch_size` examples.
            layout: "ragged": the features that are present, as ragged rows. "fields": a matrix in
                which each column is a field, with marks for what is missing. "keyed_fields": these,
                and a key for each row. "row_keys": the key alone.
            position: where to continue, of the same `seed` (None without `shuffle`). The first
                iteration is the rest of the epoch `position.epoch`, with the batches that would
                have followed; the next iterations are the epochs after it. What was consumed is
                skipped: row groups and chunks of text are not parsed again.
            repeat: go on with the next epoch, without end. Then each iteration over the dataset
                begins with the same epoch.

        Returns:
            Dataset of `(features, labels)`, or `(features, labels, weights)` if the schema has a
            column of sample weights. `labels`: float32 [B, 1]; of several labels a dict of them.
            `weights`: float32 [B].

            `features` of the layout "ragged" has, for the groups in the schema:
            `continuous_ids` (ragged int64 [B, None]) and `continuous_values` (ragged float32), the
            numbers that are present; `categorical_ids` (ragged int64), a hash for each
            category that is present, in the order of the columns; `sparse_ids` and
            `sparse_values`, ragged int64 and float32.

            `features` of the layout "fields" has `continuous` (float32 [B, C], 0 where missing) and
            `continuous_present` (bool [B, C]); `categorical` (int64 [B, F]), the hashes of the
            columns `schema.fields`, -1 where missing; for a bag in the column `tags`
            `bag_tags_ids` (ragged int64) and, with weights, `bag_tags_values` (ragged float32);
            and `sparse_ids` and `sparse_values` as above. The layout "keyed_fields" also has
            `row_keys` (int64 [B]), a key of each example that does not depend on the order of
            reading or on the worker that reads it; the layout "row_keys" has nothing else.

            It knows its length if the number of examples is known by now, as it is once
            `num_examples` was called. `fit` of Keras needs that: at the end of a dataset of unknown
            length it runs a step without a batch, which counts in `optimizer.iterations`. A dataset
            that starts in the middle of an epoch has no known length, as its iterations differ.

        Raises:
            ValueError: `batch_size` is not positive, there is no such layout, or `position` has
                another seed.
            FileNotFoundError: the data is not there.
            DataError: the schema cannot be read. What goes wrong later, while iterating, reaches
                the caller as a `tf.errors.OpError`, or inside `original_errors` as it was.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        used_seed = seed if shuffle else None
        begin = position or InputPosition(used_seed)
        if begin.seed != used_seed:
            raise ValueError(f"position must have the seed {used_seed}, got {begin.seed}")

        def blocks(iteration: int) -> Iterator[Block]:
            where = begin
            if iteration:
                where = InputPosition(used_seed, begin.epoch + iteration)
            return self._recorded(self._epoch(where, batch_size, layout != "row_keys"))

        return batches.dataset(
            blocks,
            named_layout(self.schema, layout),
            batch_size,
            drop_remainder=drop_remainder,
            num_examples=None if begin.examples else self._num_examples,
            repeat=repeat,
        )

    def batches(self, batch_size: int, *, layout: LayoutName = "ragged") -> Iterator[Any]:
        """Reads the elements of `dataset(batch_size, layout=layout)` in one pass.

        The functions of a dataset are traced again for each dataset. For a pass that needs no
        pipeline, such as one over examples in memory, this costs more than the reading.

        Args:
            batch_size: examples in a batch; the last batch may hold fewer.
            layout: the form of the features, as of `dataset`.

        Yields:
            The batches, as eager tensors of the CPU.

        Raises:
            FileNotFoundError: a file does not exist.
            DataError: the data cannot be read.
        """
        form = named_layout(self.schema, layout)
        yield from batches.eager(self._recorded(self.blocks()), form, batch_size)

    def watch(self, watcher: Callable[[Block], object]) -> None:
        """Has a function look at the examples that datasets of this source read from now on.

        Args:
            watcher: called with each block of examples before a dataset gets them.
        """
        self._watchers.append(watcher)

    def _recorded(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks; TensorFlow turns exceptions into its own, so the original is kept."""
        try:
            for block in blocks:
                for watcher in self._watchers:
                    watcher(block)
                yield block
        except Exception as e:
            self._error = e
            raise

    def shard(self, index: int, count: int) -> Source:
        """One worker's part of the examples, of which the other parts are not parsed.

        Units of a few MiB of text, row groups of a Parquet file, or batches of records are dealt
        to the workers in turn, so parts differ by up to one unit. Text is decompressed by every
        worker, but parsed and hashed by one.

        Args:
            index: the index of the worker, in [0, count).
            count: the number of the workers.

        Returns:
            The part, a source of its own. All parts together are the examples, each once.

        Raises:
            ValueError: `index` is not in [0, count).
        """
        if not 0 <= index < count:
            raise ValueError(f"index must be in [0, count), got index {index} and count {count}")
        return Shard(self, Part(index, count))

    def split(self, holdout: float = 0.2) -> tuple[Source, Source]:
        """Divides the examples into a training and an evaluation part, in file order.

        Args:
            holdout: the share of the examples, the last ones, that the evaluation part gets.

        Returns:
            (train, eval).

        Raises:
            ValueError: `holdout` is not between 0 and 1, or a part would be empty.
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read.
        """
        if not 0.0 < holdout < 1.0:
            raise ValueError(f"holdout must be between 0 and 1, got {holdout}")
        total = self.num_examples()
        cut = total - round(total * holdout)
        if cut in (0, total):
            raise ValueError(
                f"{self.name}: {total} examples cannot be split with holdout {holdout:g}, so "
                "that at least one is held out and others are left"
            )
        return RowRange(self, 0, cut), RowRange(self, cut, total)


class View(Source):
    """Examples of another source, which keep their keys.

    Args:
        whole: the source viewed.
        name: the name of the view.
    """

    def __init__(self, whole: Source, name: str) -> None:
        super().__init__(name)
        self._whole = whole

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return self._whole.schema

    @property
    def in_order_of_time(self) -> bool:
        """See `Source`."""
        return self._whole.in_order_of_time

    @property
    def findings(self) -> Mapping[str, Finding]:
        """See `Source`."""
        return self._whole.findings

    @property
    def parsed_bytes(self) -> int:
        """The parsed bytes of the source viewed, and of all its views."""
        return self._whole.parsed_bytes

    def _keyed(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        return pieces


class RowRange(View):
    """The examples start .. stop of another source."""

    def __init__(self, whole: Source, start: int, stop: int | None) -> None:
        """A view; nothing is read.

        Args:
            whole: the source viewed.
            start: the first example, from 0.
            stop: one after the last example, or None: to the end.

        Raises:
            DataError: the range is empty as written.
        """
        text = f"[{start}:{'' if stop is None else stop}]"
        if stop is not None and stop <= start:
            raise DataError(f"{whole.name}{text}: the row range is empty")
        super().__init__(whole, whole.name + text)
        self._start, self._stop = start, stop

    def _make_pieces(self) -> Sequence[Piece]:
        return RowRangePieces(self._whole._pieces(), self._start, self._stop).pieces()

    def column_types(self) -> dict[str, pa.DataType]:
        """See `Source`."""
        return self._whole.column_types()

    def raw_columns(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """See `Source`."""
        row = 0
        for batch in self._whole.raw_columns(types):
            start, stop = max(self._start - row, 0), len(batch)
            if self._stop is not None:
                stop = min(stop, self._stop - row)
            if start < stop:
                yield batch.slice(start, stop - start)
            row += len(batch)
            if self._stop is not None and row >= self._stop:
                return

    def _units(self, shuffle: tuple[int, int] | None) -> Iterator[UnitOfPiece]:
        found = False
        for index, unit in super()._units(shuffle):
            found = found or unit.rows() > 0
            yield index, unit
        if not found:
            raise DataError(f"{self.name}: no such rows, the data has fewer")


class Shard(View):
    """A part of the units of another source; see `Source.shard`."""

    def __init__(self, whole: Source, part: Part) -> None:
        """A view; nothing is read.

        Args:
            whole: the source viewed.
            part: which of its units.
        """
        super().__init__(whole, f"{whole.name} (part {part.index} of {part.count})")
        self._part = part

    def _make_pieces(self) -> Sequence[Piece]:
        return [DealtPiece(piece, self._part) for piece in self._whole._pieces()]


@contextlib.contextmanager
def original_errors(*sources: Source) -> Iterator[None]:
    """A context manager that raises an error of a reader in place of TensorFlow's error about it.

    Around any code that iterates over datasets of `sources`, such as `model.fit`:

        with original_errors(train, test):
            train.num_examples(), test.num_examples()  # so that their datasets know their lengths
            model.fit(train.dataset(1024), validation_data=test.dataset(1024))

    Args:
        *sources: the sources whose datasets are read in the block.

    Yields:
        Nothing.

    Raises:
        FileNotFoundError: a file is not there.
        DataError: the data cannot be read; one line naming the file and the line.
    """
    for source in sources:
        source._error = None
    try:
        yield
    except Exception as e:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and isinstance(e, tensorflow.errors.OpError):
            for source in sources:
                if source._error is not None:
                    raise source._error from None
        raise
