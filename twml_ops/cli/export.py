"""`twml-ops export`: the SavedModel of a finished run, for a server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.folder import SAVED_MODEL, new_folder, read_run
from twml_ops.cli.options import Debug, Run


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="Folder to make.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Copies the SavedModel of a run to a new folder. It needs no Keras, but the op library."""
    read_run(run)
    with new_folder(out) as folder:
        shutil.copytree(run / SAVED_MODEL, folder, dirs_exist_ok=True)
    print(f"the SavedModel is in {out}")
