"""`twml-ops export`: writes the model of a finished run in a format for serving."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from twml_ops._known_categories import KnownCategories
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.folder import OUTPUT_NAME, SAVED_MODEL, new_export, read_run

Format = Literal["fast", "stock", "scorer"]
TableDtype = Literal["float32", "bfloat16", "int8", "int4"]


def export_run(
    run: Path, out: Path, form: Format, tables: TableDtype, base: Path | None = None
) -> None:
    """Writes the model of a finished run to a new folder. "fast" does not import TensorFlow.

    Args:
        run: folder of the run.
        out: folder to create.
        form: "fast", a SavedModel that needs the op library; "stock", a SavedModel for any
            TensorFlow; or "scorer", for `twml_ops.core.Scorer`.
        tables: data type of the rows of large tables.
        base: an earlier scorer beside `out`, of which `out` has the changes.

    Raises:
        UserError: the folder is not a finished run, `out` exists, `tables` or `base` is not
            available for this format, or `base` cannot be used.
    """
    read_run(run)
    if form == "fast" and tables != "float32":
        raise UserError("--tables goes with --format stock or scorer")
    if form == "stock" and tables == "int4":
        raise UserError("--tables int4 goes with --format scorer")
    if base is not None and form != "scorer":
        raise UserError("--base goes with --format scorer")
    with new_export(out) as folder:
        if form == "fast":
            shutil.copytree(run / SAVED_MODEL, folder, dirs_exist_ok=True)
        else:
            _convert(run, folder, form, tables, base)
    print(f"the {'scorer' if form == 'scorer' else 'SavedModel'} is in {out}")


def _convert(run: Path, folder: Path, form: Format, tables: TableDtype, base: Path | None) -> None:
    from twml_ops.cli.runs.trained_run import TrainedRun
    from twml_ops.export import to_scorer, to_stock_tf

    trained = TrainedRun(run)
    # Raw columns are hashed as the readers hash them now, not as the readers of older runs did.
    old = trained.schema.categorical and trained.schema.hash_version == 1
    schema = None if old else trained.schema
    if form == "stock":
        assert tables != "int4"
        to_stock_tf(trained.model, folder, tables=tables, output_names=[OUTPUT_NAME], schema=schema)
    else:
        name = OUTPUT_NAME if len(trained.schema.labels) == 1 else None  # labels have names
        to_scorer(trained.model, folder, tables=tables, schema=schema, output_name=name, base=base)
        known = KnownCategories.load(run)
        if known is not None:
            known.save(folder)  # for the metrics of the server
