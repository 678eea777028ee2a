"""`twml-ops export`: the model of a finished run, in a form that a server loads."""

from __future__ import annotations

import enum
import shutil
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug, Run
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.folder import OUTPUT_NAMES, SAVED_MODEL, new_folder, read_run


class Format(str, enum.Enum):
    """What is written."""

    FAST = "fast"
    STOCK = "stock"
    SCORER = "scorer"


class Tables(str, enum.Enum):
    """How the rows of tables are stored."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="Folder to make.", show_default=False)],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="fast: SavedModel that needs the op library. stock: SavedModel for any "
            "TensorFlow. scorer: for twml_ops.core.Scorer, without TensorFlow.",
        ),
    ] = Format.FAST,
    tables: Annotated[
        Tables, typer.Option(help="Of stock and scorer: bits of the big tables' rows.")
    ] = Tables.FLOAT32,
    debug: Debug = False,
) -> None:
    """Writes the model of a run to a new folder, for serving."""
    read_run(run)
    if form is Format.FAST and tables is not Tables.FLOAT32:
        raise UserError("--tables goes with --format stock or scorer")
    with new_folder(out) as folder:
        if form is Format.FAST:
            shutil.copytree(run / SAVED_MODEL, folder, dirs_exist_ok=True)
        else:
            _write(run, folder, form, tables)
    what = "scorer" if form is Format.SCORER else "SavedModel"
    print(f"the {what} is in {out}")


def _write(run: Path, folder: Path, form: Format, tables: Tables) -> None:
    from twml_ops.cli.runs.trained_run import TrainedRun
    from twml_ops.export import to_scorer, to_stock_tf

    model = TrainedRun(run).model
    if form is Format.STOCK:
        to_stock_tf(model, folder, tables=tables.value, output_names=OUTPUT_NAMES)
    else:
        to_scorer(model, folder, tables=tables.value)
