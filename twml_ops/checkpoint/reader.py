"""Reads one checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath

import numpy as np
import tensorflow as tf

from twml_ops.checkpoint import bundles
from twml_ops.checkpoint.bundles import BUNDLE
from twml_ops.checkpoint.errors import CheckpointDamaged, CheckpointError
from twml_ops.checkpoint.locations import Location, open_file, os_errors
from twml_ops.checkpoint.manifest import RAW, Manifest, VariableEntry, checksum
from twml_ops.checkpoint.rows import ROWS, decode_rows
from twml_ops.checkpoint.writer import PIECE_BYTES

_MISSING = (FileNotFoundError, NotADirectoryError)


class CheckpointReader:
    """A checkpoint that is complete.

    Args:
        folder: the folder of the checkpoint.

    Attributes:
        folder: the folder of the checkpoint.
        manifest: what it holds.

    Raises:
        CheckpointError: the folder is no checkpoint.
    """

    def __init__(self, folder: Location) -> None:
        self.folder = folder
        self.manifest = Manifest.read(folder)
        self._entries = {entry.name: entry for entry in self.manifest.entries}

    @property
    def entries(self) -> dict[str, VariableEntry]:
        """The entries by name."""
        return self._entries

    def base(self) -> CheckpointReader | None:
        """The checkpoint that this one has the changes to.

        Returns:
            The checkpoint; None if this one is complete in itself.

        Raises:
            CheckpointDamaged: it is missing or damaged, or not older than this one.
            CheckpointError: it cannot be read now.
        """
        name = self.manifest.base
        if name is None:
            return None
        if name != PurePath(name).name:
            raise CheckpointDamaged(f"{self.folder}: base must be a plain name, got {name!r}")
        try:
            found = CheckpointReader(self.folder.parent / name)
        except CheckpointError as e:
            unread = isinstance(e.__cause__, OSError) and not isinstance(e.__cause__, _MISSING)
            kind = CheckpointError if unread else CheckpointDamaged
            raise kind(f"{self.folder}: has the changes to a checkpoint: {e}") from e
        if found.manifest.sequence >= self.manifest.sequence:
            raise CheckpointDamaged(f"{self.folder}: its base {name} is not older than itself")
        return found

    def chain(self) -> list[CheckpointReader]:
        """The checkpoints that are needed to read this one.

        Returns:
            From the one that is complete in itself to this one.

        Raises:
            CheckpointError: one is missing or damaged.
        """
        chain = [self]
        while (base := chain[0].base()) is not None:
            chain.insert(0, base)
        return chain

    def verify(self) -> None:
        """Compares all bytes with their checksums, including the bytes of the bases.

        Memory is bounded, except that a tensor of a server is read at once.

        Raises:
            CheckpointError: a file is missing, too short or changed.
        """
        for each in reversed(self.chain()):
            each.verify_own()

    def verify_files(self) -> None:
        """Compares the files of servers with the manifest, without reading their tensors.

        Raises:
            CheckpointDamaged: a file is missing or has another size, or an index is changed.
        """
        for entry in self.manifest.entries:
            if entry.encoding == BUNDLE:
                bundles.verify_files(self.folder, entry.name, entry.bundle)

    def verify_own(self) -> None:
        """Compares the bytes of this checkpoint alone with their checksums.

        Raises:
            CheckpointError: a file is missing, too short or changed.
        """
        self.verify_files()
        for entry in self.manifest.entries:
            if entry.encoding == BUNDLE:
                bundles.verify_tensors(self.folder, entry.name)
                continue
            crc = 0
            for piece in self._pieces(entry):
                crc = checksum(piece, crc)
            if crc != entry.checksum:
                raise self._damaged(entry, "its checksum differs")

    def read(self, name: str) -> np.ndarray:
        """Reads the value of a variable.

        Args:
            name: the name of the variable.

        Returns:
            The value.

        Raises:
            KeyError: there is no such variable.
            CheckpointError: the file or one of a base is damaged, or the encoding is not known.
        """
        entry = self._entries[name]
        if entry.encoding == ROWS:
            return self.changed_rows(name)[1]
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

    def read_pieces(self, name: str) -> Iterator[np.ndarray]:
        """Reads the value of a variable in pieces, where it is written as it is.

        The bytes are not compared with their checksum: `verify` does that.

        Args:
            name: the name of the variable, which has rows.

        Yields:
            Neighboring rows, at most 16 MiB; or the whole value, if it is encoded.

        Raises:
            KeyError: there is no such variable.
            CheckpointError: the file is damaged.
        """
        entry = self._entries[name]
        row_bytes = entry.bytes // max(1, entry.shape[0]) if entry.shape else 0
        if entry.encoding != RAW or not row_bytes:
            yield self.read(name)
            return
        dtype, left = tf.as_dtype(entry.dtype).as_numpy_dtype, b""
        for piece in self._pieces(entry):
            data = left + piece
            whole = len(data) // row_bytes * row_bytes
            left = data[whole:]
            if whole:
                yield np.frombuffer(data, dtype, whole // np.dtype(dtype).itemsize).reshape(
                    -1, *entry.shape[1:]
                )

    def changed_rows(
        self, name: str, since: Collection[str] = ()
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Reads the rows of a table that may have changed since an earlier checkpoint.

        Replays the changes, from one of the earlier checkpoints or the complete value on.

        Args:
            name: the name of the variable.
            since: names of the folders of earlier checkpoints of the same training, of which the
                consumer has the rows of the newest.

        Returns:
            The numbers of the rows, int64 [C] in ascending order, and the rows [C, ...]; or None
            and all rows [N, ...], if this checkpoint does not have the changes to any of `since`.

        Raises:
            KeyError: there is no such variable.
            CheckpointError: a file is damaged, or a base is missing.
        """
        entry = self._entries[name]
        changes: list[tuple[np.ndarray, np.ndarray]] = []
        reader: CheckpointReader | None = self
        while reader is not None:
            if reader.folder.name in since:
                return _newest_rows(entry, changes)
            current = reader.entries.get(entry.name)
            if current is None or (current.dtype, current.shape) != (entry.dtype, entry.shape):
                raise CheckpointError(f"{reader.folder}: does not have {entry.label} {entry.shape}")
            if current.encoding == ROWS:
                try:
                    data = reader.read_encoded(current)
                    ids, rows = decode_rows(data, entry.dtype, entry.shape, current.details)
                except ValueError as e:
                    raise reader._damaged(current, str(e)) from e
            else:
                ids, rows = None, reader.read(entry.name)
            if ids is None:
                for ids, changed in reversed(changes):
                    rows[ids] = changed
                return None, rows
            changes.append((ids, rows))
            if reader.manifest.base in since:
                return _newest_rows(entry, changes)
            reader = reader.base()
        raise self._damaged(entry, "no checkpoint has all of its rows")

    def read_encoded(self, entry: VariableEntry) -> np.ndarray:
        """Reads the bytes of a variable and compares them with their checksum.

        Args:
            entry: the entry of the variable.

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
            with os_errors(), open_file(self.folder / entry.file) as file:
                file.seek(entry.offset)
                while left:
                    piece = file.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise self._damaged(entry, f"the file is {left} bytes too short")
                    left -= len(piece)
                    yield piece
        except OSError as e:
            raise self._damaged(entry, str(e.strerror)) from e

    def _damaged(self, entry: VariableEntry, why: str) -> CheckpointDamaged:
        return CheckpointDamaged(f"{self.folder / entry.file}: {entry.label} is damaged: {why}")


def _newest_rows(
    entry: VariableEntry, changes: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of several checkpoints, the newest of which is the first."""
    if len(changes) == 1:
        return changes[0]
    changed = np.zeros(entry.shape[0], np.bool_)
    for ids, _ in changes:
        changed[ids] = True
    ids = np.flatnonzero(changed)
    rows = np.empty((len(ids), *entry.shape[1:]), tf.as_dtype(entry.dtype).as_numpy_dtype)
    for changed, values in reversed(changes):
        rows[np.searchsorted(ids, changed)] = values
    return ids, rows
