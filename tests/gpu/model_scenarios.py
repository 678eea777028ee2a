"""Whole models: `fit`, `predict`, saved files and exports."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.gpu.scenario import (
    D,
    N,
    Net,
    assert_on,
    batch,
    functional_model,
    has_gpu,
    scenario,
    slots_of,
    sparse_mlp_data,
    weights_of,
)
from twml_ops import _keras, export, layers, models, optimizers


def fits(make, run_eagerly):
    """Fits a model and returns its losses, scores and weights."""
    model = make()
    dataset = tf.data.Dataset.from_tensor_slices(batch("binary")).batch(16)
    optimizer = optimizers.Adagrad(0.1)
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    losses = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history["loss"]
    (table,) = (v for v in model.trainable_variables if tuple(v.shape) == (N, D))
    assert_on("CPU", table, *slots_of(optimizer, (N, D)))
    assert_on("GPU", *(v for v in model.trainable_variables if v is not table))
    scores = model.predict(dataset, verbose=0)
    return {"losses": np.array(losses), "scores": scores, **weights_of(*model.trainable_variables)}


@scenario
def a_functional_model_fits():
    return fits(functional_model, run_eagerly=False)


@scenario
def a_functional_model_fits_eagerly():
    return fits(functional_model, run_eagerly=True)


@scenario
def a_model_that_is_built_by_fit_fits():
    return fits(Net, run_eagerly=False)


@scenario
def a_model_that_is_built_by_fit_fits_eagerly():
    return fits(Net, run_eagerly=True)


@scenario
def the_sparse_mlp_fits():
    schema, features, dataset = sparse_mlp_data(64)
    model = models.sparse_mlp(
        schema, dataset, units=8, hidden=(5,), dropout=0.0, categorical_bits=8
    )
    model.compile(optimizers.LazyAdam(0.01), "binary_crossentropy", jit_compile=False)
    losses = model.fit(dataset, epochs=3, shuffle=False, verbose=0).history["loss"]
    for layer in _keras.all_layers(model):
        if isinstance(layer, layers.SparseLinear):
            assert_on("CPU", *layer.kernels)
        elif isinstance(layer, layers.MaxNorm):
            assert_on("CPU", *layer.variables)
        elif isinstance(layer, tf.keras.layers.Dense):
            assert_on("GPU", *layer.variables)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        again = tf.keras.models.load_model(path)
    for layer in _keras.all_layers(again):
        if isinstance(layer, layers.SparseLinear):
            assert_on("CPU", *layer.kernels)
    scores = again(features)  # eagerly: tracing `predict` twice would take most of the time
    np.testing.assert_allclose(scores, model(features), rtol=1e-5)
    again.fit(dataset, epochs=1, shuffle=False, verbose=0)  # with the slots in the file
    return {"losses": np.array(losses), "scores": scores}


@scenario
def an_export_is_loaded_on_the_host():
    model = functional_model()
    inputs, _ = batch("binary")
    want = model(inputs).numpy()
    with tempfile.TemporaryDirectory() as folder:
        export.to_tf(model, Path(folder) / "ours")
        export.to_stock_tf(model, Path(folder) / "stock")
        with tf.device("CPU:0"):
            ours = tf.saved_model.load(str(Path(folder) / "ours"))
        as_saved = tf.saved_model.LoadOptions(experimental_variable_policy="save_variable_devices")
        placed = tf.saved_model.load(str(Path(folder) / "ours"), options=as_saved)
        stock = tf.saved_model.load(str(Path(folder) / "stock"))
        if has_gpu():  # on the GPU it fails instead of copying the table
            on_gpu = tf.saved_model.load(str(Path(folder) / "ours"))
            with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot assign"):
                on_gpu(inputs)
    for loaded in (ours, placed, stock):
        np.testing.assert_allclose(loaded(inputs), want, rtol=1e-4, atol=1e-6)
    return {"scores": want}
