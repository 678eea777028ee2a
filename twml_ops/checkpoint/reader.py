"""Reads one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.checkpoint.manifest import RAW, Manifest, VariableEntry, checksum
from twml_ops.checkpoint.writer import PIECE_BYTES


class CheckpointReader:
    """A checkpoint that is complete.

    Args:
        folder: of the checkpoint.

    Attributes:
        folder: of the checkpoint.
        manifest: what it holds.

    Raises:
        CheckpointError: the folder is no checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self._entries = {entry.name: entry for entry in self.manifest.entries}

    @property
    def entries(self) -> dict[str, VariableEntry]:
        """The entries by name."""
        return self._entries

    def verify(self) -> None:
        """Compares all bytes with their checksums, in bounded memory.

        Raises:
            CheckpointError: a file is missing, too short or changed.
        """
        for entry in self.manifest.entries:
            crc = 0
            for piece in self._pieces(entry):
                crc = checksum(piece, crc)
            if crc != entry.checksum:
                raise self._damaged(entry, "its checksum differs")

    def read(self, name: str) -> np.ndarray:
        """Reads the value of a variable.

        Args:
            name: of the variable.

        Returns:
            The value.

        Raises:
            KeyError: there is no such variable.
            CheckpointError: the file is damaged, or the encoding is not known.
        """
        entry = self._entries[name]
        if entry.encoding != RAW:
            raise CheckpointError(
                f"{self.folder}: {entry.label} has the encoding {entry.encoding!r}, which this "
                "version of twml_ops cannot read"
            )
        return (
            self.read_encoded(entry)
            .view(tf.as_dtype(entry.dtype).as_numpy_dtype)
            .reshape(entry.shape)
        )

    def read_encoded(self, entry: VariableEntry) -> np.ndarray:
        """Reads the bytes of a variable and compares them with their checksum.

        Args:
            entry: of the variable.

        Returns:
            uint8 [bytes].

        Raises:
            CheckpointError: the file is damaged.
        """
        data, crc, start = np.empty(entry.bytes, np.uint8), 0, 0
        for piece in self._pieces(entry):
            crc = checksum(piece, crc)
            data[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
            start += len(piece)
        if crc != entry.checksum:
            raise self._damaged(entry, "its checksum differs")
        return data

    def _pieces(self, entry: VariableEntry) -> Iterator[bytes]:
        left = entry.bytes
        try:
            with open(self.folder / entry.file, "rb", buffering=0) as file:
                file.seek(entry.offset)
                while left:
                    piece = file.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise self._damaged(entry, f"the file is {left} bytes too short")
                    left -= len(piece)
                    yield piece
        except OSError as e:
            raise self._damaged(entry, str(e.strerror)) from e

    def _damaged(self, entry: VariableEntry, why: str) -> CheckpointError:
        return CheckpointError(f"{self.folder / entry.file}: {entry.label} is damaged: {why}")
