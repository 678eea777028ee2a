"""The files of a run, written."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from twml_ops import export
from twml_ops.cli.render import report
from twml_ops.cli.runs.folder import (
    METRICS_FILE,
    MODEL_FILE,
    OUTPUT_NAMES,
    REPORT_FILE,
    RUN_FILE,
    SAVED_MODEL,
    write_json,
)


def write(folder: Path, model: tf.keras.Model, facts: report.Facts) -> None:
    """Everything but the TensorBoard logs, which are there; run.json comes last."""
    bare = tf.keras.Model(model.input, model.output, name=model.name)  # without optimizer slots
    bare.save(str(folder / MODEL_FILE))
    export.to_tf(model, folder / SAVED_MODEL, output_names=OUTPUT_NAMES)
    (folder / REPORT_FILE).write_text(report.render(facts), encoding="utf-8")
    write_json(folder / METRICS_FILE, facts.metrics)
    write_json(folder / RUN_FILE, facts.run)
