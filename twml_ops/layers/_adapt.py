"""Reads a data set of any size into quantile sketches, with a progress line and checkpoints."""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from twml_ops import core
from twml_ops._batch import parse
from twml_ops._publish import part_of, write_file
from twml_ops._terminal import is_terminal

_FILE = "adapt.npz"
_SHOW_AFTER, _SHOW_EVERY = 2.0, 1.0
_PART_BYTES = 1 << 23


class EntryReader:
    """Iterates over the (feature, value) entries of a data set, batch by batch, as NumPy arrays.

    Args:
        data: A `tf.data.Dataset` of batches in any batch form, or one batch. Padded pairs may be
            NumPy arrays.
        extras: Number of further tensors [B] that come with each batch. If positive, elements are
            tuples (batch, extra, ...).
        start: Number of batches to skip.

    Raises:
        ValueError: While iterating: an element is not such a tuple, or a further tensor does not
            have one item for each row.
    """

    def __init__(self, data: Any, extras: int = 0, start: int = 0) -> None:
        self._data = data
        self._extras = extras
        self._start = start

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], list[Any]]]:
        data: Iterable[Any] = [self._data][self._start :]
        if isinstance(self._data, tf.data.Dataset):
            data = self._data.skip(self._start) if self._start else self._data
        for element in data:
            batch: Any = element
            rest: list[Any] = []
            if self._extras:
                if not isinstance(element, (tuple, list)) or len(element) != 1 + self._extras:
                    raise ValueError(
                        f"data must have tuples of a batch and {self._extras} more tensors, "
                        f"got {type(element).__name__}"
                    )
                batch, *rest = element
            csr, _ = parse(tf.nest.map_structure(as_tensor, batch))
            lengths = np.diff(csr.row_splits.numpy())
            by_entry = []
            for extra in rest:
                by_row = np.ravel(np.asarray(extra))
                if len(by_row) != len(lengths):
                    raise ValueError(
                        f"labels and weights must have {len(lengths)} items, one for each row, "
                        f"got {len(by_row)}"
                    )
                by_entry.append(np.repeat(by_row, lengths))
            ids = csr.ids.numpy().astype(np.int64, copy=False)
            yield ids, csr.values_or_ones().numpy(), by_entry


def as_tensor(component: Any) -> Any:
    """Converts an array to a tensor; sparse and ragged tensors are returned unchanged."""
    composite = isinstance(component, (tf.SparseTensor, tf.RaggedTensor))
    return component if composite else tf.convert_to_tensor(component)


class Checkpoint:
    """A file with sketches and a position in the data, written periodically during `adapt`.

    Args:
        folder: Folder of the file; None: nothing is written.
        every: Seconds between two writes.
        about: JSON-serializable description of the call. A file with another description is
            refused.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, every: float, about: Any) -> None:
        self._path = None if folder is None else Path(folder) / _FILE
        self._every = every
        self._about = json.dumps(about, sort_keys=True)
        self._last = time.monotonic()

    def load(self) -> tuple[list[core.QuantileSketch], int] | None:
        """Reads the file.

        Returns:
            Sketches and position, or None if there is no file.

        Raises:
            ValueError: The file is damaged or belongs to another call.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            with np.load(self._path) as file:
                about, position = str(file["about"]), int(file["position"])
                sketches = [] if about != self._about else _sketches(file)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as e:
            raise ValueError(f"{self._path}: not a checkpoint of adapt: {e}") from e
        if about != self._about:
            raise ValueError(
                f"{self._path}: checkpoint of another call of adapt, expected {self._about}, "
                f"got {about}; "
                "choose another checkpoint_dir or delete it"
            )
        return sketches, position

    def save(self, sketches: Sequence[core.QuantileSketch], position: int) -> None:
        """Writes the file if the last write is long enough ago."""
        if self._path is None or time.monotonic() - self._last < self._every:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)

        def write(file: BinaryIO) -> None:
            with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
                for name, array in self._arrays(sketches, position):
                    with archive.open(name + ".npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asanyarray(array))

        write_file(self._path, write)
        self._last = time.monotonic()

    def _arrays(
        self, sketches: Sequence[core.QuantileSketch], position: int
    ) -> Iterator[tuple[str, Any]]:
        """The arrays of the file by name. A sketch is split into parts, so that it is never copied
        whole.
        """
        yield "about", self._about
        yield "position", position
        for i, sketch in enumerate(sketches):
            features = len(sketch.feature_ids)
            step = 1 + features * _PART_BYTES // max(1, sketch.nbytes)
            for part, first in enumerate(range(0, max(1, features), step)):
                for name, array in sketch.state(first, first + step).items():
                    yield f"{i}_{part}_{name}", array

    def done(self) -> None:
        """Deletes the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            part_of(self._path).unlink(missing_ok=True)  # if a process was killed in save


def _sketches(file: Mapping[str, Any]) -> list[core.QuantileSketch]:
    """The sketches of a file, read part by part."""
    parts: dict[tuple[int, int], list[str]] = {}
    for key in file:
        if key[0].isdigit():
            i, part, name = key.split("_", 2)
            parts.setdefault((int(i), int(part)), []).append(name)
    last = max(i for i, _ in parts)
    return [
        core.QuantileSketch.from_states(
            {name: file[f"{i}_{part}_{name}"] for name in names}
            for (j, part), names in sorted(parts.items())
            if j == i
        )
        for i in range(last + 1)
    ]


class Progress:
    """A progress line on stderr, shown once a pass takes more than two seconds.

    Args:
        show: Whether to show it; None: if stderr is a terminal.
        batches: Total number of batches; negative: unknown.
    """

    def __init__(self, show: bool | None, batches: int) -> None:
        self._show = is_terminal(sys.stderr) if show is None else show
        self._batches = batches
        self._start = time.monotonic()
        self._next = self._start + _SHOW_AFTER
        self._values = 0
        self._shown = False

    def add(self, values: int, batches: int) -> None:
        """Counts `values` more values; `batches` is the number of batches read so far."""
        self._values += values
        now = time.monotonic()
        if not self._show or now < self._next:
            return
        self._next = now + _SHOW_EVERY
        self._shown = True
        of = f" of {self._batches:,}" if self._batches > 0 else ""
        rate = self._values / (now - self._start)
        line = f"adapt: {batches:,}{of} batches, {self._values:,} values, {rate:,.0f} values/s"
        print(f"\r{line}  ", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Ends the line."""
        if self._shown:
            print(file=sys.stderr, flush=True)


def count_batches(data: Any) -> int:
    """The number of batches of `data`; negative if it is unknown."""
    return int(data.cardinality()) if isinstance(data, tf.data.Dataset) else 1
