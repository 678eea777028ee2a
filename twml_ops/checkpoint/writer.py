"""Writes one checkpoint."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import tensorflow as tf

from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.checkpoint.locations import (
    Location,
    identity,
    open_file,
    os_errors,
    remove_tree,
    sync,
)
from twml_ops.checkpoint.manifest import (
    RAW,
    Manifest,
    VariableEntry,
    bundle_entry,
    checksum,
)

DATA_FILE = "data-00000"
PIECE_BYTES = 16 << 20
_ALIGNMENT = 64


class CheckpointWriter:
    """A checkpoint that is being written: `add` for each variable, then `commit`.

    As a context manager it removes a checkpoint that was not committed. If the folder was deleted
    meanwhile, and another process has made one of its name, that one stays as it is.

    Args:
        folder: the folder of the checkpoint, which does not exist yet.

    Attributes:
        folder: the folder of the checkpoint.

    Raises:
        CheckpointError: the folder cannot be created.
    """

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self._entries: list[VariableEntry] = []
        self._committed = False
        self._file: IO[Any] | None = None
        self._offset = 0
        self._held = contextlib.ExitStack()
        with _clear_errors(folder):
            folder.mkdir()
            if isinstance(folder, Path):  # while it is open, no other folder is identical
                self._held.callback(os.close, os.open(folder, os.O_RDONLY))
        self._identity = identity(folder)

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._committed:
            if self._file is not None:
                with contextlib.suppress(OSError, tf.errors.OpError):  # its content is not needed
                    self._file.close()
            if identity(self.folder) == self._identity:
                remove_tree(self.folder)
        self._held.close()

    def add(
        self,
        name: str,
        label: str,
        pieces: Iterable[np.ndarray],
        *,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        encoding: str = RAW,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Appends the value of a variable to the data file, in pieces of at most `PIECE_BYTES`.

        Args:
            name: the name of the variable, see `VariableEntry`.
            label: name for people.
            pieces: arrays whose bytes follow each other. One array for the encoding "raw".
            dtype: the type of the variable; default: of the only piece.
            shape: the shape of the variable; default: of the only piece.
            encoding: the encoding of the pieces.
            details: arguments of the encoding.

        Raises:
            CheckpointError: the disk is full, or the file cannot be written for another reason.
        """
        first: Any = None
        with _clear_errors(self.folder):
            self._write(b"\0" * (-self._offset % _ALIGNMENT))
            start, crc = self._offset, 0
            for array in pieces:
                first = array if first is None else first
                data = _bytes_of(array)
                for i in range(0, len(data), PIECE_BYTES):
                    piece = data[i : i + PIECE_BYTES]
                    crc = checksum(piece, crc)
                    self._write(piece)
        entry = VariableEntry(
            name,
            label,
            dtype or first.dtype.name,
            tuple(int(n) for n in (first.shape if shape is None else shape)),
            DATA_FILE,
            start,
            self._offset - start,
            crc,
            encoding,
            dict(details or {}),
        )
        self._entries.append(entry)

    def add_bundle(self, prefix: str) -> None:
        """Adds the tensors that an op of TensorFlow has written to the folder.

        Args:
            prefix: the prefix of the files.

        Raises:
            CheckpointError: the files are missing, or cannot be brought to the disk.
        """
        with _clear_errors(self.folder):
            self._entries.append(bundle_entry(self.folder, prefix, synced=True))

    def commit(
        self, sequence: int, step: int, values: Mapping[str, Any], base: str | None = None
    ) -> Manifest:
        """Waits until the data are on the disk and writes the manifest, which makes it valid.

        Args:
            sequence: number of the checkpoint in its folder.
            step: the step of the optimizer.
            values: everything that is no array; JSON must have them.
            base: name of the checkpoint that this one has the changes to.

        Returns:
            The manifest.

        Raises:
            CheckpointError: the disk is full, the file cannot be written for another reason, or
                another process has replaced the folder.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        manifest = Manifest(sequence, step, tuple(self._entries), dict(values), base, now)
        with _clear_errors(self.folder):
            if self._file is not None:
                if isinstance(self.folder, Path):
                    os.fsync(self._file.fileno())
                self._file.close()  # which is what brings it to an object store
            if identity(self.folder) != self._identity:
                raise CheckpointError(
                    f"the checkpoint {self.folder} cannot be written: its folder was deleted"
                )
            sync(self.folder)  # a manifest without its data would be a damaged checkpoint
            manifest.write(self.folder)
            self._committed = True
            sync(self.folder.parent)
        return manifest

    def _write(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._file = open_file(self.folder / DATA_FILE, "wb")
        if not isinstance(self.folder, Path):
            self._file.write(bytes(data))
            self._offset += len(data)
            return
        left = memoryview(data)
        while left:
            written = self._file.write(left)
            left = left[written:]
            self._offset += written


def _bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array, without a copy if it is contiguous."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


@contextlib.contextmanager
def _clear_errors(folder: Location) -> Any:
    try:
        with os_errors():
            yield
    except OSError as e:
        raise CheckpointError(
            f"the checkpoint {folder} cannot be written: {e.strerror}; earlier checkpoints are "
            "unchanged"
        ) from e
