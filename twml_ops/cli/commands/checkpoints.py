"""`twml-ops checkpoints`: lists, verifies, compacts and prunes the checkpoints of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug

app = typer.Typer(
    name="checkpoints",
    help="Lists, verifies, compacts and prunes the checkpoints of a training.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="The folder of the checkpoints.", show_default=False)]


@app.command("list")
def list_(folder: Folder, debug: Debug = False) -> None:
    """Prints a line for each valid checkpoint, from the oldest to the newest."""
    from twml_ops.cli.runs import checkpoint_list

    typer.echo(checkpoint_list.table(folder))


@app.command()
def verify(folder: Folder, debug: Debug = False) -> None:
    """Compares all bytes with their checksums; the exit status is 1 if one is damaged."""
    from twml_ops.cli.runs import checkpoint_list

    damaged = 0
    for name, problem in checkpoint_list.problems(folder):
        typer.echo(f"{name}: {problem or 'valid'}")
        damaged += problem is not None
    if damaged:
        raise typer.Exit(1)


@app.command()
def compact(folder: Folder, debug: Debug = False) -> None:
    """Replaces the checkpoints by one that has all that the newest of them restores.

    It has the weights as they are, so it is larger than a chain of quantized checkpoints can be.
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
    """Removes old checkpoints, but none that a kept one has the changes to."""
    from twml_ops.checkpoint import prune as remove_old

    removed = remove_old(folder, keep, hourly)
    typer.echo(f"{len(removed)} removed{': ' if removed else ''}{', '.join(sorted(removed))}")
