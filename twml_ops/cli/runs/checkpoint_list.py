"""What `twml-ops checkpoints` says about the checkpoints of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from twml_ops.checkpoint import CheckpointError, CheckpointManager, CheckpointReader


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
    for checkpoint in _all(folder):
        m = checkpoint.manifest
        size = f"{m.data_bytes:,}"
        lines.append((checkpoint.folder.name, str(m.step), m.written[:19], size, m.base or "-"))
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
    for checkpoint in _all(folder):
        try:
            checkpoint.verify()
            yield checkpoint.folder.name, None
        except CheckpointError as e:
            yield checkpoint.folder.name, str(e)


def _all(folder: Path) -> list[CheckpointReader]:
    found = CheckpointManager(folder).all()
    if not found:
        raise CheckpointError(f"{folder}: there is no checkpoint")
    return found
