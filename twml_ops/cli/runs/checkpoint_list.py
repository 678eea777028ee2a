"""What `twml-ops checkpoints` says about the checkpoints of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from twml_ops.checkpoint import CheckpointError, CheckpointManager, CheckpointReader


def table(folder: Path) -> str:
    """The valid checkpoints as text.

    Args:
        folder: the folder of the checkpoints.

    Returns:
        A header and one line for each, from the oldest to the newest.

    Raises:
        CheckpointError: there is none.
    """
    lines = [("checkpoint", "step", "written (UTC)", "bytes", "changes to")]
    for each in _all(folder):
        manifest = each.manifest
        written, size = manifest.written[:19], f"{manifest.data_bytes:,}"
        lines.append((each.folder.name, str(manifest.step), written, size, manifest.base or "-"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def problems(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Verifies the checkpoints one after the other.

    Args:
        folder: the folder of the checkpoints.

    Yields:
        The name of each, and what is wrong with it; None: nothing.

    Raises:
        CheckpointError: there is none.
    """
    for each in _all(folder):
        try:
            each.verify()
            yield each.folder.name, None
        except CheckpointError as e:
            yield each.folder.name, str(e)


def _all(folder: Path) -> list[CheckpointReader]:
    found = CheckpointManager(folder).all()
    if not found:
        raise CheckpointError(f"{folder}: there is no checkpoint")
    return found
