"""What every reader is: a schema, a stream of blocks, and `tf.data` batches made of them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from twml_ops.data import batches
from twml_ops.data.block import Block
from twml_ops.data.errors import DataError
from twml_ops.data.layouts import LayoutName, layout_of
from twml_ops.data.schema import Schema

CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Part:
    """Every `count`-th unit of a source (a chunk of lines, a row group), from `index` on.

    Attributes:
        index: in [0, count).
        count: into how many parts the units are divided.
    """

    index: int = 0
    count: int = 1

    def has(self, unit: int) -> bool:
        """Whether the unit of this number is in the part."""
        return unit % self.count == self.index


ALL = Part()


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
        self._num_examples: int | None = None
        self._cache: list[Block] | None = None
        self._error: Exception | None = None

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The features. May take a pass over the data, once.

        Raises:
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read.
        """

    @abstractmethod
    def _read(self, start: int, stop: int | None, part: Part = ALL) -> Iterator[Block]:
        """Parses the examples start .. stop (None: to the end), in blocks of any size.

        Of these only the units in `part` are parsed; the others are skipped.
        """

    def _count(self) -> int:
        """The number of examples, counted; readers override it where there is a cheaper way."""
        return sum(len(block) for block in self._read(0, None))

    def num_examples(self) -> int:
        """Counts the examples. May take a pass over the data, once.

        Returns:
            The number of examples.

        Raises:
            FileNotFoundError: the data is not there.
            DataError: the data cannot be read.
        """
        if self._num_examples is None:
            self._num_examples = self._count()
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
        if stop is not None and stop <= start:
            return
        if self._cache is not None:
            yield from in_range(self._cache, start, stop)
        elif start == 0 and stop is None:
            yield from self._read_and_remember()
        else:
            yield from self._read(start, stop)

    def _read_and_remember(self) -> Iterator[Block]:
        kept: list[Block] | None = []
        count = size = 0
        for block in self._read(0, None):
            count, size = count + len(block), size + block.nbytes
            if size > CACHE_BYTES:
                kept = None
            elif kept is not None:
                kept.append(block)
            yield block
        self._num_examples = count
        if kept:
            self._cache = kept

    def dataset(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_remainder: bool = False,
        layout: LayoutName = "ragged",
    ) -> tf.data.Dataset:
        """One epoch of batches.

        Args:
            batch_size: examples in a batch, B; the last batch may hold fewer.
            shuffle: whether to visit the examples in random order, drawn within windows of
                about half a million examples in file order.
            seed: the n-th iteration over the returned dataset has the order given by (seed, n).
            drop_remainder: leave out a last batch of fewer than `batch_size` examples.
            layout: "ragged": the features that are present, as ragged rows. "fields": a matrix in
                which each column is a field, with marks for what is missing.

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
            and `sparse_ids` and `sparse_values` as above.

            It knows its length if the number of examples is known by now, as it is once
            `num_examples` was called. `fit` of Keras needs that: at the end of a dataset of unknown
            length it runs a step without a batch, which counts in `optimizer.iterations`.

        Raises:
            ValueError: `batch_size` is not positive, or there is no such layout.
            FileNotFoundError: the data is not there.
            DataError: the schema cannot be read. What goes wrong later, while iterating, reaches
                the caller as a `tf.errors.OpError`, or inside `original_errors` as it was.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        return batches.dataset(
            self._recorded,
            layout_of(self.schema, layout),
            batch_size,
            seed=seed if shuffle else None,
            drop_remainder=drop_remainder,
            num_examples=self._num_examples,
        )

    def _recorded(self) -> Iterator[Block]:
        """The blocks; TensorFlow turns exceptions into its own, so the original is kept."""
        try:
            yield from self.blocks()
        except Exception as e:
            self._error = e
            raise

    def shard(self, index: int, count: int) -> Source:
        """One worker's part of the examples, of which the other parts are not parsed.

        Units of a few MiB of text, row groups of a Parquet file, or batches of records are dealt
        to the workers in turn, so parts differ by up to one unit. Text is decompressed by every
        worker, but parsed and hashed by one.

        Args:
            index: of the worker, in [0, count).
            count: of the workers.

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
                f"{self.name}: {total} examples cannot be split with holdout {holdout}"
            )
        return RowRange(self, 0, cut), RowRange(self, cut, total)


def in_range(blocks: Iterable[Block], start: int, stop: int | None) -> Iterator[Block]:
    """The examples start .. stop of `blocks`, which are not read further than needed."""
    row = 0
    for block in blocks:
        first, last = row, row + len(block)
        row = last
        if last > start:
            yield block.slice(max(start - first, 0), min(last, stop or last) - first)
        if stop is not None and last >= stop:
            return


class RowRange(Source):
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
        super().__init__(whole.name + text)
        self._whole, self._start, self._stop = whole, start, stop

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return self._whole.schema

    def _read(self, start: int, stop: int | None, part: Part = ALL) -> Iterator[Block]:
        ends = [self._start + stop] if stop is not None else []
        ends += [self._stop] if self._stop is not None else []
        begin, end = self._start + start, min(ends, default=None)
        if part != ALL:
            yield from self._whole._read(begin, end, part)
            return
        count = 0
        for block in self._whole.blocks(begin, end):
            count += len(block)
            yield block
        if not count:
            raise DataError(f"{self.name}: no such rows, the data has fewer")

    def _count(self) -> int:
        total = self._whole.num_examples()
        return max(0, min(total, total if self._stop is None else self._stop) - self._start)


class Shard(Source):
    """A part of the units of another source; see `Source.shard`."""

    def __init__(self, whole: Source, part: Part) -> None:
        """A view; nothing is read.

        Args:
            whole: the source viewed.
            part: which of its units.
        """
        super().__init__(f"{whole.name} (part {part.index} of {part.count})")
        self._whole, self._part = whole, part

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return self._whole.schema

    def shard(self, index: int, count: int) -> Source:
        """See `Source`."""
        if not 0 <= index < count:
            raise ValueError(f"index must be in [0, count), got index {index} and count {count}")
        mine = self._part
        return Shard(self._whole, Part(mine.index + mine.count * index, mine.count * count))

    def _read(self, start: int, stop: int | None, part: Part = ALL) -> Iterator[Block]:
        if part != ALL:
            raise NotImplementedError("a part of a shard is made by `Shard.shard`")
        yield from in_range(self._whole._read(0, None, self._part), start, stop)


@contextlib.contextmanager
def original_errors(*sources: Source) -> Iterator[None]:
    """In its block an error of a reader is raised as it was, not as the error of TensorFlow.

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
    except tf.errors.OpError as e:
        for source in sources:
            if source._error is not None:
                raise source._error from None
        raise e
