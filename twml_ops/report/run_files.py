"""Writing the files of a run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from twml_ops import export
from twml_ops._known_categories import KnownCategories
from twml_ops._phases import Phases, phase
from twml_ops.data import Schema
from twml_ops.layers import save_model
from twml_ops.report.page import render
from twml_ops.training.model import in_memory, without_optimizer
from twml_ops.training.results import RunResult
from twml_ops.training.run_folder import (
    METRICS_FILE,
    MODEL_FILE,
    OUTPUT_NAME,
    REPORT_FILE,
    RUN_FILE,
    SAVED_MODEL,
    write_json,
    write_result,
)


def write_model(folder: Path, out: Path, model: tf.keras.Model) -> None:
    """Writes the model of a run, from which point on a failure does not lose the training.

    If the disk is full, the folder has a link to the model in the folder for temporary files.

    Args:
        folder: folder to write to.
        out: final name of `folder`.
        model: the model.

    Raises:
        UserError: the disk is full; the model is elsewhere, where the message says.
        OSError: the model could not be written at all.
    """
    bare = without_optimizer(model)
    write_result(folder / MODEL_FILE, out / MODEL_FILE, lambda path: save_model(bare, path))


def write_files(folder: Path, result: RunResult) -> None:
    """Writes the files of a run, except the model and the TensorBoard logs, which are there.

    run.json is written last: it marks the run as finished.
    """
    phases = result.phases or Phases()
    with phases.recording():
        with phase("export"):
            write_saved_model(folder / SAVED_MODEL, result.model)
        with phase("report"):
            (folder / REPORT_FILE).write_text(render(result), encoding="utf-8")
    write_json(folder / METRICS_FILE, result.metrics_file())
    write_json(folder / RUN_FILE, {**result.facts, **times_of(result.phases)})


def times_of(phases: Phases | None) -> dict[str, Any]:
    """The entries of run.json about the time that a training took."""
    if phases is None:
        return {}
    seconds = {name: round(value, 3) for name, value in phases.seconds.items()}
    return {"phases": seconds, "wall_seconds": round(phases.total(), 3)}


def write_features(folder: Path, result: RunResult) -> None:
    """Writes what the training data were like, with which other data are compared."""
    if result.known is not None:
        result.known.save(folder)
    if result.statistics is not None:
        result.statistics.save(folder)


def write_saved_model(path: Path, trained: tf.keras.Model) -> None:
    """Writes a SavedModel that any TensorFlow loads, or if the model has none, one of our ops."""
    model = in_memory(without_optimizer(trained))
    try:
        export.to_stock_tf(model, path, output_names=[OUTPUT_NAME])
    except ValueError as e:
        warnings.warn(
            f"the {SAVED_MODEL} of this run needs `import twml_ops.ops`: {e}", stacklevel=2
        )
        export.to_tf(model, path, output_names=[OUTPUT_NAME])


TableDtype = Literal["float32", "bfloat16", "int8", "int4"]


def write_export(
    folder: Path,
    model: tf.keras.Model,
    schema: Schema,
    form: Literal["fast", "stock", "scorer"],
    tables: TableDtype = "float32",
    known: KnownCategories | None = None,
    base: Path | None = None,
) -> None:
    """Writes a trained model in a format for serving.

    Args:
        folder: folder to write to.
        model: the model.
        schema: its features and labels.
        form: "stock", a SavedModel for any TensorFlow; "fast", a SavedModel that needs the op
            library; or "scorer", for `twml_ops.core.Scorer`.
        tables: data type of the rows of large tables: float32 for "fast", int4 for "scorer" only.
        known: the categories that the model has seen, for the metrics of the server of a scorer.
        base: an earlier scorer beside `folder`, of which it has the changes.
    """
    if form == "stock":
        assert tables != "int4"
        export.to_stock_tf(model, folder, tables=tables, output_names=[OUTPUT_NAME], schema=schema)
    elif form == "fast":
        export.to_tf(model, folder, output_names=[OUTPUT_NAME], schema=schema)
    else:
        name = OUTPUT_NAME if len(schema.labels) == 1 else None  # labels have names
        export.to_scorer(model, folder, tables=tables, schema=schema, output_name=name, base=base)
        if known is not None:
            known.save(folder)
