"""An input pipeline taken apart, so that its settings can be tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class InputSettings:
    """The settings of a pipeline that change its speed, but not the examples that it reads.

    Attributes:
        batch_first: batches records before they are parsed, many in one call, not after.
        read_files: files that are read alternately, in parallel if more than one.
        parallel_calls: parses that run at once.
        prefetch: batches made ahead, while the step runs.
    """

    batch_first: bool = False
    read_files: int = 1
    parallel_calls: int = 1
    prefetch: int = 0


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Files of records to batches of parsed examples.

    Attributes:
        files: paths, or one glob.
        batch_size: examples in a batch.
        parse_batch: serialized records [B] -> a batch of features.
        parse_one: one serialized record -> its features; features of unknown length become ragged
            when they are batched; None: `parse_batch` of a batch of one is all there is, and
            records are always batched first.
        reader: path -> dataset of records.
        settings: the settings in use.
    """

    files: str | Sequence[str]
    batch_size: int
    parse_batch: Callable[[tf.Tensor], Any]
    parse_one: Callable[[tf.Tensor], Any] | None = None
    reader: Callable[[Any], tf.data.Dataset] = tf.data.TFRecordDataset
    settings: InputSettings = InputSettings()

    def dataset(self, settings: InputSettings | None = None) -> tf.data.Dataset:
        """Makes the batches.

        The order of the examples depends on `read_files` only. The dataset has no known length, as
        files do not say how many records they hold, and at the end of such a dataset `fit` of Keras
        counts one step too many. If the number of batches n is known, apply
        `tf.data.experimental.assert_cardinality(n)`.

        Args:
            settings: the settings of the pipeline; default: its own.

        Returns:
            The dataset of one pass.

        Raises:
            ValueError: no file matches `files`.
        """
        s = settings or self.settings
        files = tf.io.gfile.glob(self.files) if isinstance(self.files, str) else list(self.files)
        if not files:
            raise ValueError(f"files must name at least one file, got {self.files!r}")
        records = tf.data.Dataset.from_tensor_slices(sorted(files)).interleave(
            self.reader,
            cycle_length=s.read_files,
            num_parallel_calls=s.read_files if s.read_files > 1 else None,
        )
        calls = s.parallel_calls if s.parallel_calls > 1 else None
        if s.batch_first or self.parse_one is None:
            result = records.batch(self.batch_size).map(self.parse_batch, calls)
        else:
            result = records.map(self.parse_one, calls).ragged_batch(self.batch_size)
        return result.prefetch(s.prefetch) if s.prefetch else result

    def code(self, settings: InputSettings) -> str:
        """Writes the pipeline as Python code, for use without this class.

        Args:
            settings: the settings of the pipeline.

        Returns:
            Source code that makes the dataset that `dataset(settings)` returns.
        """
        parallel = ", num_parallel_calls=" + str(settings.read_files)
        interleave = f"cycle_length={settings.read_files}"
        interleave += parallel if settings.read_files > 1 else ""
        calls = f", num_parallel_calls={settings.parallel_calls}"
        calls = calls if settings.parallel_calls > 1 else ""
        lines = [f".interleave(reader, {interleave})"]
        if settings.batch_first or self.parse_one is None:
            lines += [f".batch({self.batch_size})", f".map(parse_batch{calls})"]
        else:
            lines += [f".map(parse_one{calls})", f".ragged_batch({self.batch_size})"]
        if settings.prefetch:
            lines.append(f".prefetch({settings.prefetch})")
        body = "\n".join(f"    {line}" for line in lines)
        return f"dataset = (\n    tf.data.Dataset.from_tensor_slices(files)\n{body}\n)"
