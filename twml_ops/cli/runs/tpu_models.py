"""Loads the models that `tpu-check` compiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from twml_ops import layers, models, optimizers
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import LayoutName, Schema, tune_pipeline

_CUSTOM = (
    layers,
    models,
    optimizers,
)  # importing them registers the classes that a .keras file names
_CRITEO = Schema(
    tuple(f"I{i}" for i in range(1, 14)), tuple(f"C{i}" for i in range(1, 27)), 0, "a click"
)


def load(reference: str) -> tf.keras.Model:
    """Loads a model.

    Args:
        reference: name of a model of the package, folder of a run, .keras file, or `FILE.py:NAME`.

    Raises:
        UserError: `reference` is none of these.
        ValueError: the file of a reference has no such model.
    """
    if reference in models.names():
        build = models.get(reference)
        return build(_CRITEO, _random_batch(_CRITEO, models.layout_of(build)))
    path = Path(reference)
    if path.is_dir():
        return TrainedRun(path).model
    if path.suffix == ".keras" and path.is_file():
        return tf.keras.models.load_model(str(path))
    if ":" not in reference:
        raise UserError(
            f"no model {reference!r}: expected one of {', '.join(models.names())}, the folder of a "
            "run, a .keras file, or FILE.py:NAME"
        )
    return tune_pipeline.load_object(reference, tf.keras.Model, "a Keras model")


def _random_batch(schema: Schema, layout: LayoutName, rows: int = 512) -> tf.data.Dataset:
    """One batch of random features, on which the first layers of a model are adapted."""
    rng = np.random.default_rng(0)
    columns = len(schema.continuous)
    numbers = rng.normal(size=(rows, columns)).astype(np.float32)
    categories = rng.integers(0, 2**62, (rows, len(schema.categorical)))
    if layout != "ragged":
        present = np.ones((rows, columns), bool)
        features = {"continuous": numbers, "continuous_present": present, "categorical": categories}
        if layout == "keyed_fields":
            features["row_keys"] = np.arange(rows)
    else:
        ragged = tf.RaggedTensor.from_tensor
        features = {
            "continuous_ids": ragged(np.tile(np.arange(columns), (rows, 1))),
            "continuous_values": ragged(numbers),
            "categorical_ids": ragged(categories),
        }
    labels = rng.integers(0, 2, (rows, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensors((features, labels))
