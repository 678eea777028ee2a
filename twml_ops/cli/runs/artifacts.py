"""Writing the files of a run."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from twml_ops import export
from twml_ops.cli.render import report
from twml_ops.cli.results.run_result import RunResult
from twml_ops.cli.runs import tiered_tables
from twml_ops.cli.runs.folder import (
    METRICS_FILE,
    MODEL_FILE,
    OUTPUT_NAME,
    REPORT_FILE,
    RUN_FILE,
    SAVED_MODEL,
    write_json,
)
from twml_ops.layers import save_model


def write(folder: Path, result: RunResult) -> None:
    """Writes all files of a run except the TensorBoard logs, which training writes itself.

    run.json is written last: it marks the run as finished.
    """
    model = result.model
    bare = tf.keras.Model(model.input, model.output, name=model.name)  # without optimizer slots
    save_model(bare, folder / MODEL_FILE)
    export.to_tf(tiered_tables.in_memory(bare), folder / SAVED_MODEL, output_names=[OUTPUT_NAME])
    (folder / REPORT_FILE).write_text(report.render(result), encoding="utf-8")
    write_json(folder / METRICS_FILE, result.metrics_file())
    write_json(folder / RUN_FILE, result.facts)
