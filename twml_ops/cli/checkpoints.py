"""`twml-ops checkpoints`: lists, verifies, compacts and prunes the checkpoints of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import Debug

if TYPE_CHECKING:
    from twml_ops.checkpoint import CheckpointReader

app = typer.Typer(
    name="checkpoints",
    help="Lists, verifies, compacts and prunes the checkpoints of a training.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="The folder of the checkpoints.", show_default=False)]


@app.command("list")
def list_(folder: Folder, debug: Debug = False) -> None:
    """Prints a line for each valid checkpoint, from the oldest to the newest."""
    typer.echo(table_of(folder))


@app.command()
def verify(folder: Folder, debug: Debug = False) -> None:
    """Compares all bytes with their checksums; the exit status is 1 if one is damaged."""
    damaged = 0
    for name, problem in problems_of(folder):
        typer.echo(f"{name}: {problem or 'valid'}")
        damaged += problem is not None
    if damaged:
        raise typer.Exit(1)


@app.command()
def compact(folder: Folder, debug: Debug = False) -> None:
    """Replaces the checkpoints by a complete one, which restores the same as the newest of them.

    Its weights are not quantized, so it may be larger than a chain of quantized checkpoints.
    """
    from twml_ops.checkpoint import compact as write_complete

    path = write_complete(folder)
    if path is None:
        typer.echo("The newest checkpoint is complete; nothing was written.")
    else:
        typer.echo(f"{path.name} replaces all checkpoints.")


@app.command()
def prune(
    folder: Folder,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest ones stay.")] = 3,
    hourly: Annotated[
        bool, typer.Option("--hourly", help="The newest one of each hour (UTC) stays as well.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Removes old checkpoints, but none on which a checkpoint that is kept is based."""
    from twml_ops.checkpoint import prune as remove_old

    removed = remove_old(folder, keep, hourly)
    typer.echo(f"{len(removed)} removed{': ' if removed else ''}{', '.join(sorted(removed))}")


def table_of(folder: Path) -> str:
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


def problems_of(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Verifies the checkpoints one after the other.

    Args:
        folder: the folder of the checkpoints.

    Yields:
        The name of each, and what is wrong with it; None: nothing.

    Raises:
        CheckpointError: there is none.
    """
    from twml_ops.checkpoint import CheckpointError
    from twml_ops.checkpoint.list_checkpoints import find
    from twml_ops.checkpoint.locations import location

    found = find(location(folder))
    found.raise_unread()
    if not found.valid and not found.problems:
        raise CheckpointError(f"{folder}: there is no checkpoint")
    for name, problem in found.problems.items():
        yield name, str(problem)
    for each in found.valid:
        try:
            each.verify()
            yield each.folder.name, None
        except CheckpointError as e:
            yield each.folder.name, str(e)


def _all(folder: Path) -> list[CheckpointReader]:
    from twml_ops.checkpoint import CheckpointError, CheckpointManager

    found = CheckpointManager(folder).all()
    if not found:
        raise CheckpointError(f"{folder}: there is no checkpoint")
    return found
