"""Work on the checkpoints of a folder while no training uses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.checkpoint.locations import Location
from twml_ops.checkpoint.manager import CheckpointManager
from twml_ops.checkpoint.manifest import SHARDS, Manifest
from twml_ops.checkpoint.reader import CheckpointReader
from twml_ops.checkpoint.writer import CheckpointWriter


def compact(folder: Path) -> Location | None:
    """Writes the newest checkpoint again, complete, and removes all others.

    The complete one has the values that the newest one restores, as they are. So it is smaller than
    the chain of changes that it replaces, unless these were quantized. A process that is killed at
    any moment leaves the old checkpoints or the new one.

    Args:
        folder: the folder of the checkpoints.

    Returns:
        The new checkpoint; None if the newest one is complete already and nothing was written.

    Raises:
        CheckpointError: there is no checkpoint, the newest one is damaged or of a cluster, another
            process writes to the folder, or the disk is full.
    """
    with CheckpointManager(folder, background=False) as manager:
        newest = _newest(manager)
        manifest = newest.manifest
        if SHARDS in manifest.values:
            raise CheckpointError(f"{folder}: the checkpoints of a cluster cannot be compacted")
        if manifest.base is None:
            return None

        def write(writer: CheckpointWriter, sequence: int) -> Manifest:
            for entry in manifest.entries:
                writer.add(entry.name, entry.label, [newest.read(entry.name)], dtype=entry.dtype)
            return writer.commit(sequence, manifest.step, manifest.values)

        path = manager.add(write, manifest.step)
        manager.prune([path.name])
        return path


def prune(folder: Path, keep: int, hourly: bool = False) -> list[str]:
    """Removes old checkpoints, except the ones on which a kept checkpoint is based.

    Args:
        folder: the folder of the checkpoints.
        keep: how many of the newest ones stay, at least 1.
        hourly: whether the newest one of each hour, in UTC, stays as well.

    Returns:
        The names of the checkpoints that were removed.

    Raises:
        CheckpointError: there is no checkpoint, the newest one is damaged, another process writes
            to the folder, or a checkpoint cannot be read. Then none is removed.
        ValueError: `keep` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    with CheckpointManager(folder, background=False) as manager:
        _newest(manager)
        found = manager.usable()
        kept = {c.folder.name for c in found[-keep:]}
        if hourly:
            kept |= _last_of_each_hour(found)
        return manager.prune(kept)


def _newest(manager: CheckpointManager) -> CheckpointReader:
    """The newest checkpoint, whose bytes are what was written, as it may be the only one left."""
    problems: list[str] = []
    newest = manager.newest_intact(warn=problems.append)
    if newest is None:
        raise CheckpointError(f"{manager.folder}: there is no checkpoint")
    if problems:
        raise CheckpointError(f"{manager.folder}: nothing was changed: {problems[0]}")
    return newest


def _last_of_each_hour(found: Sequence[CheckpointReader]) -> set[str]:
    """Names; `written` begins with the date and the hour, as in 2026-01-31T23."""
    return set({c.manifest.written[:13]: c.folder.name for c in found}.values())
