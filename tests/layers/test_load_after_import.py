"""A process that imports `twml_ops` alone loads every model that Keras has saved."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import KERAS_3
from twml_ops import _keras_classes, layers, metrics, optimizers

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import json, sys
import twml_ops
assert "tensorflow" not in sys.modules
import tensorflow as tf
assert "twml_ops.layers" not in sys.modules
found = []
for path in sys.argv[1:]:
    model = tf.keras.models.load_model(path)
    outputs = model.predict_on_batch(tf.constant([[1, 2], [0, 3]], tf.int64))
    found.append([outputs.tolist(), type(model.optimizer).__name__])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def model():
    inputs = tf.keras.Input([2], dtype="int64")
    hidden = layers.FieldEmbedding([5, 5], 3)(inputs)
    hidden = layers.FactorizationMachine()(hidden)
    linear = layers.SparseLinear(1, 5, kernel_regularizer="l2")(inputs)
    outputs = tf.keras.layers.Add()([tf.keras.layers.Dense(1)(hidden), linear])
    model = tf.keras.Model(inputs, outputs)
    loss = tf.keras.losses.MeanSquaredError()  # Keras 3 cannot read "mse" of an .h5 file
    model.compile(optimizers.LazyAdam(0.1), loss, metrics=[metrics.CalibrationRatio()])
    model.train_on_batch(np.array([[1, 2], [0, 3]]), np.ones((2, 1)))
    return model


def test_a_model_loads_after_the_import_of_the_package_alone(model, tmp_path):
    paths = [tmp_path / "m.keras", tmp_path / "m.h5"]
    if not KERAS_3:
        paths.append(tmp_path / "folder")
    for path in paths:
        model.save(str(path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *paths],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    want = model.predict_on_batch(np.array([[1, 2], [0, 3]]))
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(paths)
    for path, (outputs, optimizer) in zip(paths, found, strict=True):
        np.testing.assert_allclose(outputs, want, rtol=1e-5, err_msg=str(path))
        assert optimizer == "LazyAdam"


def test_every_registered_class_has_a_placeholder_of_its_name():
    from twml_ops import distribute, export, research, tpu  # noqa: F401

    registered = tf.keras.utils.get_custom_objects()
    ours = {n.partition(">")[2]: c.__module__ for n, c in registered.items() if "Twml>" in n}
    listed = {n: p for p, names in _keras_classes.CLASSES.items() for n in names.split()}
    real = {n: module for n, module in ours.items() if module.startswith("twml_ops.")}
    assert set(real) == set(listed)
    for name, module in real.items():
        if module != _keras_classes.__name__:  # as of a class that only one Keras needs
            assert module.startswith(f"twml_ops.{listed[name].removeprefix('_')}"), name
    kept = [name for name, module in real.items() if module == _keras_classes.__name__]
    assert kept in ([], ["LossScaleOptimizer"])
