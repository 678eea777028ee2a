"""`twml-ops export`: writes the model of a finished run in a format for serving."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug, Run


class Format(str, enum.Enum):
    """Format of an export."""

    FAST = "fast"
    STOCK = "stock"
    SCORER = "scorer"


class Tables(str, enum.Enum):
    """Data type of the rows of large tables in an export."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="Folder to create.", show_default=False)],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="fast: SavedModel that needs the op library. stock: SavedModel for any "
            "TensorFlow. scorer: for twml_ops.core.Scorer, without TensorFlow.",
        ),
    ] = Format.FAST,
    tables: Annotated[
        Tables,
        typer.Option(help="Data type of large tables; for stock and scorer, int4 for scorer."),
    ] = Tables.FLOAT32,
    base: Annotated[
        Path | None,
        typer.Option(
            help="Earlier scorer in the same folder as OUT: of large tables, only the rows that "
            "differ from it are written."
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Writes the model of a run to a new folder, for serving."""
    from twml_ops.cli.runs.export import export_run

    export_run(run, out, form.value, tables.value, base)
