"""The models that `tpu-check` can be asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import layers, models, optimizers
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import Schema, tune_pipeline

_CUSTOM = (layers, models, optimizers)  # importing them registers what a .keras file names
_CRITEO = Schema(
    tuple(f"I{i}" for i in range(1, 14)), tuple(f"C{i}" for i in range(1, 27)), 0, "a click"
)


def load(reference: str) -> tf.keras.Model:
    """The model that a name, a folder, a .keras file or `FILE.py:NAME` stands for.

    Raises:
        UserError: it stands for none.
    """
    if reference in models.names():
        return models.get(reference)(_CRITEO, _made_up(_CRITEO))
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


def _made_up(schema: Schema, rows: int = 512) -> tf.data.Dataset:
    """A batch of random features, for discretizers to have boundaries."""
    rng = np.random.default_rng(0)

    def ragged(values: Any) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_tensor(values)

    numbers = len(schema.continuous)
    features = {
        "continuous_ids": ragged(np.tile(np.arange(numbers), (rows, 1))),
        "continuous_values": ragged(rng.normal(size=(rows, numbers)).astype(np.float32)),
        "categorical_ids": ragged(rng.integers(0, 2**62, (rows, len(schema.categorical)))),
    }
    labels = rng.integers(0, 2, (rows, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensors((features, labels))
