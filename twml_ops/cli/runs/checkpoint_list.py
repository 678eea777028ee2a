"""What `twml-ops checkpoints` says about the checkpoints of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from twml_ops.checkpoint import CheckpointError, CheckpointManager, CheckpointReader
from twml_ops.distribute.hybrid.checkpoint_files import shards_checkpoints


def table(folder: Path) -> str:
    """The valid checkpoints as text.

    Args:
        folder: of the checkpoints.

    Returns:
        A header and one line for each, from the oldest to the newest.

    Raises:
        CheckpointError: there is none.
    """
    lines = [("checkpoint", "step", "written (UTC)", "bytes", "changes to")]
    for each in _all(folder):
        size = f"{each.data_bytes:,}"
        lines.append((each.name, str(each.step), each.written[:19], size, each.base or "-"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def problems(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Verifies the checkpoints one after the other.

    Args:
        folder: of the checkpoints.

    Yields:
        The name of each, and what is wrong with it; None: nothing.

    Raises:
        CheckpointError: there is none.
    """
    for each in _all(folder):
        try:
            each.verify()
            yield each.name, None
        except ValueError as e:  # a CheckpointError is one
            yield each.name, str(e)


class _Listed(Protocol):
    """A checkpoint of one process, or of the servers of a cluster."""

    @property
    def name(self) -> str:
        """Name of its folder."""

    @property
    def step(self) -> int:
        """Step of the training."""

    @property
    def base(self) -> str | None:
        """Name of the checkpoint that it has the changes to."""

    @property
    def written(self) -> str:
        """When, in UTC, as ISO 8601."""

    @property
    def data_bytes(self) -> int:
        """Bytes of its data."""

    def verify(self) -> None:
        """Compares all bytes with their checksums."""


class _OfOneProcess:
    """A checkpoint of one process, as a list shows it."""

    def __init__(self, reader: CheckpointReader) -> None:
        manifest = reader.manifest
        self.name, self.step, self.base = reader.folder.name, manifest.step, manifest.base
        self.written, self.data_bytes = manifest.written, manifest.data_bytes
        self.verify = reader.verify


def _all(folder: Path) -> Sequence[_Listed]:
    found = [_OfOneProcess(reader) for reader in CheckpointManager(folder).all()]
    of_servers = [] if found else shards_checkpoints(folder)
    if not found and not of_servers:
        raise CheckpointError(f"{folder}: there is no checkpoint")
    return found or of_servers
