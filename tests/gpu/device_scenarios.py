"""Tables on the GPU, with emulated CUDA kernels (tests/cuda); without a GPU, on the host."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.gpu.scenario import (
    WIDTH,
    B,
    D,
    N,
    assert_on,
    batch,
    copied_bytes,
    counts_copies,
    full_gpu,
    has_gpu,
    scenario,
    slots_of,
    step_of,
    weights_of,
)
from twml_ops import checkpoint, core, layers, ops, optimizers
from twml_ops.ops._library import library
from twml_ops.placement import DevicePlacement, placement_scope

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.Momentum(0.1, nesterov=True),
    "adagrad": lambda: optimizers.Adagrad(0.1, weight_decay=0.01),
    "rowwise": lambda: optimizers.RowWiseAdagrad(0.1),
    "lazy_adam": lambda: optimizers.LazyAdam(0.01),
    "ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
}


def table_of(placement, rows=N, **kwargs):
    kwargs = {
        "use_bias": False,
        "kernel_initializer": tf.keras.initializers.Constant(0.01),
        **kwargs,
    }
    return layers.SparseLinear(D, rows, placement=placement, **kwargs)


def train(placement, name, form="ragged", **kwargs):
    """Trains a table for some steps. Returns it, its optimizer, and a function that does a step."""
    linear, optimizer = table_of(placement, **kwargs), OPTIMIZERS[name]()
    inputs, labels = batch(form)

    def call(inputs):
        return tf.reduce_sum(tf.tanh(linear(inputs)), axis=1, keepdims=True)

    call(inputs)
    step = step_of(call, optimizer, lambda: linear.trainable_variables)
    for _ in range(3):
        step(inputs, labels)
    return linear, optimizer, lambda: step(inputs, labels)


@scenario
def tables_on_the_gpu_train_like_tables_on_the_host():
    found = {}
    for name in OPTIMIZERS:
        for dtype in ("float32", "bfloat16"):
            device = train("device", name, kernel_dtype=dtype)
            host = train("host", name, kernel_dtype=dtype)
            assert_on("GPU", device[0].kernel, *slots_of(device[1], (N, D), (N,)))
            assert_on("CPU", host[0].kernel, *slots_of(host[1], (N, D), (N,)))
            weights = [np.array(tf.cast(run[0].kernel, tf.float32)) for run in (device, host)]
            # TensorFlow's ops give both the same gradients, so the tables have the same bits.
            if (
                name != "rowwise" and core.simd_level() != "baseline"
            ) or core.simd_level() == "avx512":
                np.testing.assert_array_equal(*weights)
            found[f"{name} {dtype}"] = weights[1][::50]
    return found


def train_shared(placements, sizes, optimizer):
    """Trains tables with the same normalized batch. Returns the variables and the step's graph."""
    norm = layers.MaxNorm(N)
    tables = [table_of(p, rows) for p, rows in zip(placements, sizes, strict=True)]
    inputs, labels = batch("ragged")

    def call(inputs):
        normed = norm(inputs, training=True)
        return tf.add_n([tf.reduce_sum(tf.tanh(t(normed)), 1, keepdims=True) for t in tables])

    call(inputs)
    step = step_of(call, optimizer, lambda: [v for t in tables for v in t.trainable_variables])
    for _ in range(3):
        step(inputs, labels)
    return [t.kernel for t in tables], step.get_concrete_function(inputs, labels).graph


@scenario
def tables_with_the_same_batch_share_its_groups_on_each_device():
    placements = ["host", "device", "host", "device", "device"]
    sizes = [N, N, 2 * N, N, 2 * N]
    kernels, graph = train_shared(placements, sizes, OPTIMIZERS["adagrad"]())
    on_host, _ = train_shared(["host"] * 5, sizes, OPTIMIZERS["adagrad"]())
    for kernel, expected in zip(kernels, on_host, strict=True):
        np.testing.assert_allclose(kernel, expected, rtol=1e-5, atol=1e-7)
    groups = [op for op in graph.get_operations() if op.type == "Twml>GroupBatch"]
    if has_gpu():
        assert_on("CPU", kernels[0], kernels[2])
        assert_on("GPU", kernels[1], kernels[3], kernels[4])
        assert sorted(tf.DeviceSpec.from_string(op.device).device_type for op in groups) == [
            "CPU",
            "GPU",
            "GPU",  # for the larger table
        ]
        numbers = []
        for op in groups:
            updates = [t for t in op.outputs[0].consumers() if "Apply" in t.type]
            assert {t.device for t in updates} == {op.device}
            numbers.append(len(updates))
        assert sorted(numbers) == [1, 2, 2]
    else:
        assert len(groups) == 1
    return weights_of(*on_host)


@scenario
def groups_of_one_device_are_refused_on_another():
    if not has_gpu():
        return {}
    ids, values, splits = (
        tf.constant([1, 2]),
        tf.constant([1.0, 2.0]),
        tf.constant([0, 2], tf.int64),
    )
    devices = ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"]

    def gradient(of_groups, of_op):
        def at(device):
            return library.beside(device if "GPU" in device else None)

        @tf.function
        def run():
            size = tf.constant(N, tf.int64)
            with at(of_groups):
                groups = library.twml_group_batch(ids, values, splits, size, [])
            with at(of_op):
                rows = tf.ones([1, D])
                return library.twml_sparse_linear_weights_grad(
                    ids, values, splits, rows, size, [groups]
                )

        return run()

    for of_groups in devices:
        for of_op in devices:
            if of_groups == of_op:
                assert gradient(of_groups, of_op)[0].numpy().tolist() == [1, 2]
            else:
                with pytest.raises(tf.errors.InvalidArgumentError, match="groups must be"):
                    gradient(of_groups, of_op)
    return {}


@scenario
def averages_of_tables_on_the_gpu_are_those_of_tables_on_the_host():
    found = []
    for placement in ("device", "host"):
        optimizer = optimizers.Adagrad(0.1, use_ema=True, ema_momentum=0.9)
        linear = table_of(placement)
        inputs, labels = batch("ragged")

        def call(inputs, linear=linear):
            return tf.reduce_sum(tf.tanh(linear(inputs)), axis=1, keepdims=True)

        call(inputs)
        step = step_of(call, optimizer, lambda linear=linear: linear.trainable_variables)
        for _ in range(3):
            step(inputs, labels)
        table = linear.trainable_variables[0]
        optimizer.finalize_variable_values([table])
        found.append(np.array(linear.kernel))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)
    return {"averages": found[1]}


@scenario
def a_step_with_a_table_on_the_gpu_moves_the_batch_only():
    for form in ("ragged", "padded", "sparse"):
        _, _, step = train("device", "adagrad", form)
        to_device, to_host, largest = copied_bytes(step)
        entries = B * WIDTH
        assert to_device <= entries * (8 + 4) + B * 64 + 4096, to_device
        assert to_host <= 4096, to_host
        assert largest <= entries * 8, largest
    return {}


@scenario
def eager_gradients_and_updates_of_tables_on_the_gpu():
    found = []
    for placement in ("device", "host"):
        linear = table_of(placement)
        (ids, values), _ = batch("ragged")
        flat, splits = values.flat_values, ids.row_splits
        linear((ids, values))
        with tf.GradientTape() as tape:
            tape.watch(flat)
            y = ops.sparse_linear(ids.flat_values, flat, splits, linear.kernel)
            loss = tf.reduce_sum(tf.sin(y))
        by_table, by_values = tape.gradient(loss, [linear.trainable_variables[0], flat])
        optimizer = optimizers.Adagrad(0.1)
        optimizer.apply_gradients([(by_table, linear.trainable_variables[0])])
        found.append(
            [by_table.indices, by_table.values, by_values, tf.convert_to_tensor(linear.kernel)]
        )
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    return {str(i): np.array(a) for i, a in enumerate(found[1])}


@scenario
def bad_ids_of_a_table_on_the_gpu_raise_at_the_latest_in_the_next_step():
    if not has_gpu():
        return {}
    linear = table_of("device")
    bad, good = (tf.ragged.constant([[1, i]], dtype=tf.int64) for i in (N + 5, 1))
    linear(bad)
    tf.test.experimental.sync_devices()  # a card works on, while the host goes to the next op
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"1 ids are out of range.*ids\[1\]"):
        linear(good)
    y = linear(good)  # reported once
    np.testing.assert_allclose(y, np.full((1, D), 0.02), rtol=1e-6)
    return {}


@scenario
def files_and_checkpoints_move_between_the_host_and_the_gpu():
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for source, target in (("device", "host"), ("host", "device")):
            first, _, _ = train(source, "adagrad")
            inputs = tf.keras.Input((None,), dtype="int64", ragged=True)
            model = tf.keras.Model(inputs, first(inputs))
            path = str(Path(folder) / f"{source}.weights.h5")
            model.save_weights(path)
            second = table_of(target)
            other = tf.keras.Model(inputs, second(inputs))
            other.load_weights(path)
            np.testing.assert_array_equal(second.kernel, first.kernel)
            assert_on("CPU" if target == "host" else "GPU", second.kernel)
            path = str(Path(folder) / f"{source}.keras")
            model.save(path)
            loaded = tf.keras.models.load_model(path)
            kernel = loaded.trainable_variables[0]
            np.testing.assert_array_equal(kernel, first.kernel)
            assert_on("CPU" if source == "host" else "GPU", kernel)
            found[source] = np.array(first.kernel)[::50]
    return found


def small_model(placement):
    inputs = tf.keras.Input((None,), dtype="int64", ragged=True)
    table = table_of(placement)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="head")(table(inputs)))
    model.compile(OPTIMIZERS["lazy_adam"](), "mse", jit_compile=False)
    return model, table


def save_with_tensorflow(model, folder):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "ckpt"))


def restore_with_tensorflow(model, path):
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    saved.read(path).assert_existing_objects_matched()


def save_with_manager(model, folder):
    with checkpoint.CheckpointManager(folder, background=False) as manager:
        manager.save(1, checkpoint.variables_of(model), {})
    return folder


def restore_with_manager(model, folder):
    with checkpoint.CheckpointManager(folder) as manager:
        checkpoint.restore(manager.latest(), checkpoint.variables_of(model))


CHECKPOINTS = {
    "tensorflow": (save_with_tensorflow, restore_with_tensorflow),
    "manager": (save_with_manager, restore_with_manager),
}


@scenario
def a_checkpoint_goes_on_where_another_placement_ended():
    """Trains three steps, saves, restores with the other placement, and trains three more."""
    (ids, _), labels = batch("ragged")
    found = {}
    for kind, (save, restore) in CHECKPOINTS.items():
        for source, target in (("device", "host"), ("host", "device")):
            models = [small_model(p) for p in (source, target)]
            for model, table in models:
                model.train_on_batch(ids, labels)  # creates the slots
                assert_on("GPU" if table.placement == "device" else "CPU", table.kernel)
            (first, _), (second, table) = models
            first.train_on_batch(ids, labels)
            with tempfile.TemporaryDirectory() as folder:
                restore(second, save(first, Path(folder)))
            for model, _ in models:
                model.train_on_batch(ids, labels)
            where = "GPU" if target == "device" else "CPU"
            assert_on(where, table.kernel, *slots_of(second.optimizer, (N, D)))
            for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
                # A card adds the gradient of the bias in any order.
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            found[f"{kind} {source}"] = np.array(table.kernel)[::50]
    return found


@scenario
def a_table_that_does_not_fit_into_the_gpu_is_an_error_that_names_it():
    if not has_gpu():
        return {}
    linear = layers.SparseLinear(
        20, 1 << 26, kernel_initializer="zeros", placement="device", name="huge"
    )
    with pytest.raises(tf.errors.ResourceExhaustedError, match="'huge/kernel'.*placement=\"host\""):
        linear.build()
    return {}


@scenario
def a_batch_or_slots_that_do_not_fit_are_errors_that_name_the_table():
    if not counts_copies():  # a real GPU may have enough memory
        return {}
    error = tf.errors.ResourceExhaustedError
    linear = layers.SparseLinear(
        1 << 22, 4, kernel_initializer="zeros", use_bias=False, placement="device", name="wide"
    )
    linear.build()
    with pytest.raises(error, match="(?s)table '.*kernel.* of shape .*placement=.host"):
        linear(tf.ragged.constant([[1]] * 300, dtype=tf.int64))  # a result of more than 4 GiB
    one_row = tf.RaggedTensor.from_row_splits(tf.zeros([1 << 20], tf.int64), [0, 1 << 20])
    with pytest.raises(error, match="(?s)table '.*kernel.* its working memory.*placement=.host"):
        linear(one_row)
    optimizer = optimizers.Momentum(0.1)
    with full_gpu(), pytest.raises(error, match="(?s)'.*kernel.*placement=.host"):
        optimizer.build(linear.trainable_variables)
    return {}


def grouped(place):
    """Trains two tables of one layer, with and without values. Returns the layer and its op."""
    with contextlib.nullcontext() if place is None else placement_scope(place):
        layer = layers.GroupedSparseLinear(
            {"a": layers.SparseTable(N, D), "b": layers.SparseTable(N, 8, dtype="bfloat16")},
            {"x": "a", "y": "b", "z": "a"},
        )
        layer.build()
    for i, (name, table) in enumerate(sorted(layer.kernels.items())):
        start = np.random.default_rng(i).normal(size=table.shape)
        table.assign(tf.cast(start, table.dtype))
        assert name in "ab"
    inputs, labels = batch("ragged")
    features = {"x": inputs, "y": inputs[0], "z": inputs}

    def call(features):
        return tf.add_n(
            [tf.reduce_sum(tf.tanh(y), 1, keepdims=True) for y in layer(features).values()]
        )

    step = step_of(call, optimizers.Adagrad(0.1), lambda: layer.trainable_variables)
    for _ in range(3):
        step(features, labels)
    graph = step.get_concrete_function(features, labels).graph
    return layer, [op for op in graph.get_operations() if op.type == "Twml>GroupedSparseLinear"]


@scenario
def grouped_tables_on_the_gpu_are_multiplied_in_one_op_and_train_like_those_on_the_host():
    device = DevicePlacement() if has_gpu() else None
    (on_gpu, ops_on_gpu), (on_host, _) = grouped(device), grouped(None)
    assert_on("GPU", *on_gpu.kernels.values())
    assert_on("CPU", *on_host.kernels.values())
    (op,) = ops_on_gpu
    assert not has_gpu() or tf.DeviceSpec.from_string(op.device).device_type == "GPU"
    found = [weights_of(*layer.kernels.values()) for layer in (on_gpu, on_host)]
    for name, expected in found[1].items():
        np.testing.assert_allclose(found[0][name], expected, rtol=1e-5, atol=1e-6)
    return {name: value[::50] for name, value in found[1].items()}


@scenario
def grouped_tables_on_both_devices_are_multiplied_one_by_one():
    (ids, values), _ = batch("ragged")
    entries = [(ids.flat_values, values.flat_values, ids.row_splits)] * 2
    tables = [table_of(p) for p in ("device", "host")]
    for table in tables:
        table.build()
    products = ops.grouped_sparse_linear(entries, [table.kernel for table in tables])
    np.testing.assert_allclose(*products, rtol=1e-6, atol=1e-7)
    return {"product": products[1]}


@scenario
def fit_trains_a_table_on_the_gpu():
    inputs, labels = batch("padded")
    model = tf.keras.Sequential([table_of("device"), tf.keras.layers.Dense(1)])
    model.compile(optimizers.LazyAdam(0.01), "mse")
    data = tf.data.Dataset.from_tensors((inputs, labels)).repeat(4)
    model.fit(data, epochs=1, verbose=0)
    assert_on("GPU", model.layers[0].kernel)
    return weights_of(*model.layers[0].trainable_variables)
