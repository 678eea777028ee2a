"""Replicas on two GPUs: each has its table on the host, and all tables have the same bits."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.gpu.scenario import (
    WIDTH,
    B,
    D,
    N,
    arrays,
    assert_on,
    copied_bytes,
    has_gpu,
    scenario,
    slots_of,
)
from twml_ops import layers, optimizers
from twml_ops.ops._tape import tf_variable

REPLICAS = 2


@functools.cache
def strategy():
    """A strategy of two GPUs, which the simulated GPU has no collectives for; else none."""
    if not has_gpu():
        return None
    devices = [f"GPU:{i}" for i in range(REPLICAS)]
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def copies(variable):
    """The values of a variable on all replicas."""
    value = tf_variable(variable)
    return [value] if strategy() is None else strategy().experimental_local_results(value)


def assert_equal_on_the_host(*variables):
    for variable in variables:
        found = copies(variable)
        assert_on("CPU", *found)
        assert all(v.numpy().tobytes() == found[0].numpy().tobytes() for v in found), variable.name


def make(norm=layers.MaxNorm, optimizer=optimizers.Adagrad, **kwargs):
    """A model with a norm, a table and a dense layer, and its optimizer."""
    with contextlib.nullcontext() if strategy() is None else strategy().scope():
        draw = tf.keras.initializers.RandomNormal
        inputs = [tf.keras.Input((None,), dtype=t, ragged=True) for t in ("int64", "float32")]
        table = layers.SparseLinear(D, N, kernel_initializer=draw(0, 0.1, seed=1), **kwargs)
        head = tf.keras.layers.Dense(1, kernel_initializer=draw(0, 0.3, seed=2))
        normed = norm(N, name="norm")(inputs)
        model = tf.keras.Model(inputs, head(table(normed)))
        return model, table, optimizer(0.1)


def batches():
    """The batch of each replica, on the host."""
    ids, values, labels = arrays()
    parts = [slice(None)] if strategy() is None else [slice(0, B // 2), slice(B // 2, B)]
    with tf.device("CPU:0"):
        found = []
        for part in parts:
            splits = tf.constant(np.arange(len(ids[part]) + 1) * WIDTH)
            flat = [tf.constant(a[part].ravel()) for a in (ids, values)]
            ragged = [tf.RaggedTensor.from_row_splits(f, splits, validate=False) for f in flat]
            found.append((*ragged, tf.constant(labels[part])))
        return found


def replica_step(model, optimizer):
    def replica(ids, values, labels):
        with tf.GradientTape() as tape:
            error = model([ids, values], training=True) - labels
            loss = tf.reduce_sum(error**2) / B
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    return replica


def step_on_replicas(model, optimizer):
    replica, found = replica_step(model, optimizer), batches()
    if strategy() is None:
        return tf.function(lambda: replica(*found[0]))
    per_replica = strategy().experimental_distribute_values_from_function(
        lambda context: found[context.replica_id_in_sync_group]
    )
    return tf.function(lambda: strategy().run(replica, args=per_replica))


def step_on_a_distributed_dataset(model, optimizer):
    replica = replica_step(model, optimizer)
    ids, values, labels = (tf.concat([b[i] for b in batches()], axis=0) for i in range(3))
    with tf.device("CPU:0"):
        data = tf.data.Dataset.from_tensors((ids, values, labels)).unbatch()
        data = data.ragged_batch(B).repeat()
    if strategy() is None:
        found = next(iter(data))
        return tf.function(lambda: replica(*found))
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    batch = next(iter(strategy().experimental_distribute_dataset(data, options)))
    return tf.function(lambda: strategy().run(replica, args=batch))


def trains_on_replicas(make_step=step_on_replicas, **kwargs):
    model, table, optimizer = make(**kwargs)
    step = make_step(model, optimizer)
    for _ in range(3):
        step()
    to_device, to_host, largest = copied_bytes(step)
    norm = model.get_layer("norm")
    assert_equal_on_the_host(table.kernel, *norm.variables, *slots_of(optimizer, (N, D), (N,)))
    activations = B * D * 4
    dense = 8192  # the bias and the dense layer, which TensorFlow sends from GPU to GPU
    assert to_device <= activations + dense, to_device
    assert to_host <= activations + dense, to_host
    assert largest <= activations, largest
    return {str(i): copies(v)[0].numpy() for i, v in enumerate(model.variables)}


@scenario
def replicas_on_gpus_train_tables_on_the_host():
    return trains_on_replicas()


@scenario
def replicas_on_gpus_train_with_a_distributed_dataset():
    return trains_on_replicas(step_on_a_distributed_dataset)


@scenario
def replicas_on_gpus_train_with_a_slot_for_each_row():
    return trains_on_replicas(norm=layers.OnlineStandardize, optimizer=optimizers.RowWiseAdagrad)


def fits_on_replicas(make_optimizer, precision):
    """Batches are padded: TensorFlow 2.21 cannot hand ragged tensors of GPUs to `fit`."""
    ids, values, labels = arrays()
    with tf.device("CPU:0"):
        data = tf.data.Dataset.from_tensor_slices(((ids, values), labels)).batch(B).repeat(4)
    tf.keras.mixed_precision.set_global_policy(precision)
    try:
        with contextlib.nullcontext() if strategy() is None else strategy().scope():
            table = layers.SparseLinear(D, N, kernel_initializer="ones")
            inputs = [tf.keras.Input((WIDTH,), dtype=t) for t in ("int64", "float32")]
            outputs = tf.keras.layers.Dense(1, kernel_initializer="ones", dtype="float32")
            model = tf.keras.Model(inputs, outputs(table(inputs)))
            optimizer = make_optimizer()
            model.compile(optimizer, "mse", jit_compile=False, steps_per_execution=2)
        model.fit(data, epochs=1, verbose=0)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert_equal_on_the_host(table.kernel, *slots_of(optimizer, (N, D)))
    kernel = copies(table.kernel)[0].numpy()
    assert np.isfinite(kernel).all()
    assert (kernel != 1).any()
    return kernel


@scenario
def replicas_on_gpus_fit_with_several_steps_in_one_execution():
    # Keras 3 clips the gradient of each replica, so clipped weights are not compared.
    fits_on_replicas(lambda: optimizers.Adagrad(0.1, global_clipnorm=0.5), "float32")
    return {"kernel": fits_on_replicas(lambda: optimizers.Adagrad(0.1), "float32")[::20]}


@scenario
def replicas_on_gpus_fit_with_mixed_precision():
    # The rounding of float16 depends on the number of replicas, so the values are not compared.
    inner = functools.partial(optimizers.LazyAdam, 0.01, clipvalue=0.01)
    fits_on_replicas(lambda: optimizers.LossScaleOptimizer(inner()), "mixed_float16")
    return {}


@scenario
def tables_on_gpus_are_refused_with_replicas():
    if has_gpu():
        with strategy().scope(), pytest.raises(ValueError, match='got 2; use placement="host"'):
            layers.SparseLinear(D, N, placement="device").build()
    return {}
