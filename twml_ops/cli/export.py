"""`twml-ops export`: writes the model of a finished run in a format for serving."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from twml_ops.cli.options import Debug, Run
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    from twml_ops.report.run_files import TableDtype


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
            help="stock: SavedModel for any TensorFlow and TensorFlow Serving. fast: SavedModel "
            "that only loads after `import twml_ops.ops`. scorer: for `twml-ops serve`, "
            "twml_ops.core.Scorer and the C interface, without TensorFlow.",
        ),
    ] = Format.STOCK,
    tables: Annotated[
        Tables,
        typer.Option(help="Data type of large tables, for stock and scorer; int4 for scorer only."),
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
    export_run(run, out, form.value, tables.value, base)


FormatName = Literal["fast", "stock", "scorer"]


def export_run(
    run: Path, out: Path, form: FormatName, tables: TableDtype, base: Path | None = None
) -> None:
    """Writes the model of a finished run to a new folder.

    Args:
        run: folder of the run.
        out: folder to create.
        form: "stock", a SavedModel for any TensorFlow; "fast", a SavedModel that needs the op
            library; or "scorer", for `twml_ops.core.Scorer`.
        tables: data type of the rows of large tables.
        base: an earlier scorer beside `out`, of which `out` has the changes.

    Raises:
        UserError: the folder is not a finished run, `out` exists, `tables` or `base` is not
            available for this format, or `base` cannot be used.
    """
    from twml_ops.training.run_folder import new_export, read_run

    read_run(run)
    if form == "fast" and tables != "float32":
        raise UserError("--tables needs --format stock or scorer")
    if form == "stock" and tables == "int4":
        raise UserError("--tables int4 needs --format scorer")
    if base is not None and form != "scorer":
        raise UserError("--base needs --format scorer")
    with new_export(out) as folder:
        from twml_ops._known_categories import KnownCategories
        from twml_ops.report.run_files import write_export
        from twml_ops.training.trained_run import TrainedRun

        trained, known = TrainedRun(run), KnownCategories.load(run)
        write_export(folder, trained.model, trained.schema, form, tables, known, base)
    print(f"the {'scorer' if form == 'scorer' else 'SavedModel'} is in {out}")
    if form == "fast":
        print(
            "it contains ops of this package: `import twml_ops.ops` before you load it; TensorFlow "
            "Serving needs --format stock"
        )
