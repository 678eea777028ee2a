"""Layers: states and tables are on the host, and discretizers copy nothing to the GPU."""

import numpy as np
import tensorflow as tf

from tests.gpu.scenario import (
    B,
    D,
    N,
    assert_on,
    batch,
    copied_bytes,
    counts_copies,
    scenario,
    slots_of,
    step_of,
    weights_of,
)
from twml_ops import layers, optimizers


def normalizes(make, form):
    norm, linear = make(), layers.SparseLinear(D, N)
    inputs, labels = batch(form)
    optimizer = optimizers.Adagrad(0.1)

    def call(inputs):
        return tf.reduce_sum(linear(norm(inputs, training=True)), axis=1, keepdims=True)

    call(inputs)
    variables = [*norm.trainable_variables, *linear.trainable_variables]
    step = step_of(call, optimizer, lambda: variables)
    step(inputs, labels)
    step(inputs, labels)
    _, to_host, largest = copied_bytes(lambda: step(inputs, labels))
    assert_on("CPU", *norm.variables, linear.kernel, *slots_of(optimizer, (N,), (N, D)))
    if counts_copies() and form == "ragged":
        activations = B * D * 4
        assert largest == activations, largest
        assert to_host <= activations + 1024, to_host
    return weights_of(*norm.variables, *linear.variables)


@scenario
def max_norm_trains():
    return normalizes(lambda: layers.MaxNorm(N, bias_initializer="ones"), "ragged")


@scenario
def max_norm_trains_on_padded_rows():
    return normalizes(lambda: layers.MaxNorm(N), "padded")


@scenario
def online_standardize_trains():
    return normalizes(lambda: layers.OnlineStandardize(N), "ragged")


@scenario
def online_standardize_trains_on_sparse_tensors():
    return normalizes(lambda: layers.OnlineStandardize(N), "sparse")


@scenario
def grouped_tables_cross_and_factorization_machine_train():
    grouped = layers.GroupedSparseLinear(
        {"a": layers.SparseTable(N, D), "b": layers.SparseTable(N, D, dtype="bfloat16")}
    )
    machine = layers.FactorizationMachine()
    cross, out = layers.Cross(), tf.keras.layers.Dense(1)
    inputs, labels = batch("ragged")
    optimizer = optimizers.Momentum(0.1)

    def call(inputs):
        rows = grouped({"a": inputs, "b": inputs[0]})
        return out(cross(tf.concat([rows["a"], rows["b"]], axis=1))) + machine(rows)

    call(inputs)
    dense = [*cross.trainable_variables, *out.trainable_variables]
    step = step_of(call, optimizer, lambda: [*grouped.trainable_variables, *dense])
    for _ in range(2):
        step(inputs, labels)
    _, _, largest = copied_bytes(lambda: step(inputs, labels))
    assert_on("CPU", *grouped.kernels.values(), *slots_of(optimizer, (N, D)))
    assert_on("GPU", *dense)
    assert largest <= B * D * 4, largest
    return weights_of(*grouped.trainable_variables, *dense)


@scenario
def discretizers_adapt_and_discretize():
    inputs, _ = batch("ragged", top=20)
    found = {}
    for name, layer in (
        ("percentile", layers.PercentileDiscretizer(4, keep_sketch=True)),
        ("hashing", layers.HashingDiscretizer(8, num_bins=4, unknown="drop")),
    ):
        layer.adapt(tf.data.Dataset.from_tensors(inputs))
        assert_on("CPU", *layer.state_variables, *layer.sketch_variables)
        ids, values = layer(inputs)
        found[name] = ids.flat_values.numpy()
        found[name + "_values"] = values.flat_values.numpy()
        call = tf.function(layer)
        with tf.device("CPU:0"):  # otherwise the outputs of a function are copied to the GPU
            call(inputs)
            assert sum(copied_bytes(lambda call=call: call(inputs))[:2]) == 0
    return found


@scenario
def calibrations_fit_and_calibrate():
    scores = np.random.default_rng(0).normal(size=(200, 1))
    labels = (scores[:, 0] > 0.3).astype(np.float32)
    found = {}
    for layer in (layers.PlattScaling(), layers.IsotonicCalibration()):
        layer.adapt(scores, labels)
        found[layer.name.split("_")[0]] = tf.function(layer)(
            tf.constant(scores, tf.float32)
        ).numpy()
    return found
