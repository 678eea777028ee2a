"""What the package does beside a GPU. Run as a script, with the library of the fake GPU, it prints
the outcome of every scenario as JSON; without a GPU the same functions give the wanted numbers.
"""

import ctypes
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import _keras, data, export, layers, models, ops, optimizers
from twml_ops.ops._tape import tf_variable

N, D, B, WIDTH = 2000, 16, 64, 10
SCENARIOS = {}
fake = None  # the library of the fake GPU, in the process that has one


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def on(kind, *variables):
    """Where there is a GPU, the variables must be on a device of that kind."""
    for variable in variables:
        device = tf_variable(variable).device
        got = tf.DeviceSpec.from_string(device).device_type
        assert fake is None or got == kind, f"{variable.name} is on {device}"


def moved(step):
    """Bytes to the GPU, bytes to the host and the largest copy of one call of `step`."""
    if fake is None:
        step()
        return 0, 0, 0
    fake.fake_gpu_reset()
    step()
    traffic = ("fake_gpu_bytes_to_device", "fake_gpu_bytes_to_host", "fake_gpu_largest_copy")
    return tuple(getattr(fake, name)() for name in traffic)


def weights_of(*variables):
    return {str(i): np.array(tf.cast(v, tf.float32)) for i, v in enumerate(variables)}


def arrays(seed=0, rows=B, top=N):
    """Ids, values and labels; every row has WIDTH entries, ids repeat."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, top, (rows, WIDTH))
    values = rng.normal(size=ids.shape).astype(np.float32)
    return ids, values, rng.integers(0, 2, (rows, 1)).astype(np.float32)


def batch(form, **kwargs):
    """As an input pipeline gives it: on the host."""
    ids, values, labels = arrays(**kwargs)
    with tf.device("CPU:0"):
        if form == "padded":
            return (tf.constant(ids), tf.constant(values)), tf.constant(labels)
        if form == "sparse":
            rows = np.repeat(np.arange(len(ids)), WIDTH)
            indices = np.stack([rows, ids.ravel()], axis=1)
            sparse = tf.SparseTensor(indices, values.ravel(), [len(ids), N])
            return sparse, tf.constant(labels)
        splits = tf.constant(np.arange(len(ids) + 1) * WIDTH)
        flat = [tf.constant(a.ravel()) for a in (ids, values)]
        pair = tuple(tf.RaggedTensor.from_row_splits(f, splits, validate=False) for f in flat)
        return (pair if form == "ragged" else pair[0]), tf.constant(labels)


class Net(tf.keras.Model):
    """A table made by Keras when this model is built, then dense layers."""

    def __init__(self, **kwargs):
        super().__init__()
        self.table = layers.SparseLinear(D, N, activation="relu", **kwargs)
        self.dense = tf.keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(self.table(inputs))


def step_of(call, optimizer, variables):
    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((call(inputs) - labels) ** 2)
        found = variables()
        optimizer.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))
        return loss

    return step


def slots_of(optimizer, *shapes):
    """The optimizer's variables of one of those shapes."""
    every = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [v for v in every if tuple(v.shape) in shapes]


def trains(make_optimizer, form="binary", **kwargs):
    """Three steps of a `Net`; the last moves activations and their gradient, and never a table."""
    net, optimizer = Net(**kwargs), make_optimizer()
    inputs, labels = batch(form)
    assert net(inputs).shape == (B, 1)
    step = step_of(net, optimizer, lambda: net.trainable_variables)
    step(inputs, labels)
    step(inputs, labels)
    to_device, to_host, largest = moved(lambda: step(inputs, labels))
    kernels = net.table.kernels
    on("CPU", *kernels, *slots_of(optimizer, *[s for k in kernels for s in (k.shape, k.shape[:1])]))
    on("GPU", net.table.bias, *net.dense.trainable_variables)
    on("GPU", *slots_of(optimizer, (D,), (D, 1)))
    if fake is not None:
        activations = B * D * 4
        assert activations <= to_device <= activations + 1024, to_device
        assert activations <= to_host <= activations + 1024, to_host
        assert largest == activations, largest
    return weights_of(*net.trainable_variables)


@scenario
def sgd_trains():
    return trains(lambda: optimizers.SGD(0.1))


@scenario
def momentum_trains():
    return trains(lambda: optimizers.Momentum(0.1, nesterov=True), form="ragged")


@scenario
def adagrad_trains():
    return trains(lambda: optimizers.Adagrad(0.1, weight_decay=0.01), form="sparse")


@scenario
def rowwise_adagrad_trains_by_slices():
    return trains(lambda: optimizers.RowWiseAdagrad(0.1, clipvalue=0.01))


@scenario
def lazy_adam_trains():
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return trains(lambda: optimizers.LazyAdam(schedule), form="padded")


@scenario
def ftrl_trains_on_clipped_gradients():
    return trains(lambda: optimizers.Ftrl(0.1, global_clipnorm=0.5))


@scenario
def bfloat16_tables_train():
    return trains(lambda: optimizers.Adagrad(0.1, rounding_seed=3), kernel_dtype="bfloat16")


@scenario
def tables_partitioned_by_row_train():
    return trains(lambda: optimizers.Adagrad(0.1), num_partitions=3)


@scenario
def tables_partitioned_by_column_train():
    kwargs = {"num_partitions": 2, "partition_axis": "column"}
    return trains(lambda: optimizers.Adagrad(0.1), form="ragged", **kwargs)


@scenario
def tables_to_be_sharded_train_without_replicas():
    return trains(lambda: optimizers.Adagrad(0.1), placement="sharded")


@scenario
def accumulated_gradients_train():
    if not _keras.KERAS_3:
        return {}
    return trains(lambda: optimizers.Adagrad(0.1, gradient_accumulation_steps=2))


@scenario
def a_step_taken_eagerly_is_the_same():
    net, optimizer = Net(), optimizers.LazyAdam(0.1)
    inputs, labels = batch("ragged")
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(inputs) - labels) ** 2)
        variables = net.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    on("CPU", net.table.kernel, *slots_of(optimizer, (N, D)))
    return weights_of(*net.trainable_variables)


def functional():
    inputs = tf.keras.Input((None,), dtype="int64", ragged=True)
    hidden = layers.SparseLinear(D, N, activation="relu")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))


def fits(make, run_eagerly):
    model = make()
    dataset = tf.data.Dataset.from_tensor_slices(batch("binary")).batch(16)
    optimizer = optimizers.Adagrad(0.1)
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    losses = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history["loss"]
    (table,) = (v for v in model.trainable_variables if tuple(v.shape) == (N, D))
    on("CPU", table, *slots_of(optimizer, (N, D)))
    on("GPU", *(v for v in model.trainable_variables if v is not table))
    scores = model.predict(dataset, verbose=0)
    return {"losses": np.array(losses), "scores": scores, **weights_of(*model.trainable_variables)}


@scenario
def a_functional_model_fits():
    return fits(functional, run_eagerly=False)


@scenario
def a_functional_model_fits_eagerly():
    return fits(functional, run_eagerly=True)


@scenario
def a_model_that_fit_builds_fits():
    return fits(Net, run_eagerly=False)


@scenario
def a_model_that_fit_builds_fits_eagerly():
    return fits(Net, run_eagerly=True)


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
    _, to_host, largest = moved(lambda: step(inputs, labels))
    on("CPU", *norm.variables, linear.kernel, *slots_of(optimizer, (N,), (N, D)))
    if fake is not None and form == "ragged":
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
    _, _, largest = moved(lambda: step(inputs, labels))
    on("CPU", *grouped.kernels.values(), *slots_of(optimizer, (N, D)))
    on("GPU", *dense)
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
        on("CPU", *layer.state_variables, *layer.sketch_variables)
        ids, values = layer(inputs)
        found[name] = ids.flat_values.numpy()
        found[name + "_values"] = values.flat_values.numpy()
        call = tf.function(layer)
        with tf.device("CPU:0"):  # or a function's outputs go to the GPU
            call(inputs)
            assert sum(moved(lambda call=call: call(inputs))[:2]) == 0
    return found


@scenario
def calibrations_fit_and_calibrate():
    scores = np.random.default_rng(0).normal(size=(200, 1))
    labels = (scores[:, 0] > 0.3).astype(np.float32)
    found = {}
    for layer in (layers.PlattScaling(), layers.IsotonicCalibration()):
        layer.fit(scores, labels)
        found[layer.name.split("_")[0]] = tf.function(layer)(
            tf.constant(scores, tf.float32)
        ).numpy()
    return found


@scenario
def the_sparse_mlp_fits():
    schema = data.Schema(("a", "b"), ("c",), 50, "x")
    rng = np.random.default_rng(0)

    def ragged(flat):
        return tf.RaggedTensor.from_uniform_row_length(tf.constant(flat), 2)

    features = {
        "continuous_ids": ragged(np.tile([0, 1], 64)),
        "continuous_values": ragged(rng.normal(size=128).astype(np.float32)),
        "categorical_ids": ragged(rng.integers(0, 1 << 60, 128)),
        "sparse_ids": ragged(rng.integers(0, 50, 128)),
        "sparse_values": ragged(rng.normal(size=128).astype(np.float32)),
    }
    labels = rng.integers(0, 2, (64, 1)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)
    model = models.sparse_mlp(
        schema, dataset, units=8, hidden=(5,), dropout=0.0, categorical_bits=8
    )
    model.compile(optimizers.LazyAdam(0.01), "binary_crossentropy", jit_compile=False)
    losses = model.fit(dataset, epochs=3, shuffle=False, verbose=0).history["loss"]
    for layer in _keras.all_layers(model):
        if isinstance(layer, layers.SparseLinear):
            on("CPU", *layer.kernels)
        elif isinstance(layer, layers.MaxNorm):
            on("CPU", *layer.variables)
        elif isinstance(layer, tf.keras.layers.Dense):
            on("GPU", *layer.variables)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        again = tf.keras.models.load_model(path)
    for layer in _keras.all_layers(again):
        if isinstance(layer, layers.SparseLinear):
            on("CPU", *layer.kernels)
    scores = again.predict(dataset, verbose=0)
    np.testing.assert_allclose(scores, model.predict(dataset, verbose=0), rtol=1e-5)
    again.fit(dataset, epochs=1, shuffle=False, verbose=0)  # with the slots of the file
    return {"losses": np.array(losses), "scores": scores}


@scenario
def an_export_is_loaded_on_the_host():
    model = functional()
    inputs, _ = batch("binary")
    want = model(inputs).numpy()
    with tempfile.TemporaryDirectory() as folder:
        export.to_tf(model, Path(folder) / "ours")
        export.to_stock_tf(model, Path(folder) / "stock")
        with tf.device("CPU:0"):
            ours = tf.saved_model.load(str(Path(folder) / "ours"))
        stock = tf.saved_model.load(str(Path(folder) / "stock"))
        if fake is not None:  # elsewhere it does not run, rather than on a copy of the table
            elsewhere = tf.saved_model.load(str(Path(folder) / "ours"))
            with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot assign"):
                elsewhere(inputs)
    for loaded in (ours, stock):
        np.testing.assert_allclose(loaded(inputs), want, rtol=1e-4, atol=1e-6)
    return {"scores": want}


def call_all(values):
    """Ops of every kind on values that may be anywhere."""
    ids = tf.cast(tf.abs(values) * 10, tf.int64)
    splits = tf.constant([0, 3, 3, 8], tf.int64)
    state = ops.sketch_update(ops.empty_sketch(0.1), ids, values)
    found = [[1, 2], [0.0, 1.0], [0, 1, 2]]  # feature ids, boundaries, splits
    bucket_ids, bucket_values, _ = ops.percentile_discretize(ids, values, splits, *found)
    (packed,) = ops.pack_entries(ids, values, splits, 100)
    return {
        "product": ops.sparse_linear(ids, values, splits, tf.reshape(tf.range(400.0), [100, 4])),
        "hash": ops.hash_ids(ids, 8),
        "unpacked": ops.unpack_entries(packed)[1],
        "sums": ops.sum_duplicates(ids, values[:, tf.newaxis])[1],
        "splits": ops.csr_from_indices(tf.stack([ids * 0, ids], axis=1), 2)[1],
        "buckets": bucket_ids,
        "values": bucket_values,
        "quantiles": ops.sketch_quantiles(state, ids[:2], [0.5]),
    }


@scenario
def ops_take_tensors_of_any_device():
    numbers = np.random.default_rng(0).normal(size=8).astype(np.float32)
    devices = ["CPU:0"] if fake is None else ["CPU:0", "GPU:0", "GPU:1"]
    found = []
    for device in devices:
        with tf.device(device):
            values = tf.identity(tf.constant(numbers))
            found += [call_all(values), tf.function(call_all)(values)]
        found += [call_all(values), tf.function(call_all)(values)]
    for other in found[1:]:
        for name, value in other.items():
            np.testing.assert_array_equal(value, found[0][name], err_msg=name)
    return {name: value.numpy() for name, value in found[0].items()}


@scenario
def graph_nodes_keep_the_job_and_task_of_their_scope():
    with tf.Graph().as_default(), tf.device("/job:ps/task:1"):
        hashed = ops.hash_ids([1, 2], 5)
    device = tf.DeviceSpec.from_string(hashed.op.device)
    assert (device.job, device.task) == ("ps", 1)
    assert device.device_type == (None if fake is None else "CPU")
    return {}


@scenario
def stock_ops_and_xla_compatible_ones_are_not_confined():
    table = tf.Variable(tf.ones([N, D]))
    on("GPU", table)
    inputs, _ = batch("padded")
    linear = layers.SparseLinear(D, N)
    with ops.xla_compatible():
        outputs = linear(inputs)
        on("GPU", linear.kernel)

    @tf.function
    def nodes(ids, values):
        with ops.xla_compatible():
            return linear((ids, values))

    graph = nodes.get_concrete_function(*inputs).graph
    assert not [op.name for op in graph.get_operations() if "CPU" in op.device]
    return {"outputs": outputs.numpy()}


@scenario
def a_table_that_a_user_put_on_a_gpu_is_refused():
    if fake is None:
        return {}
    table = tf.Variable(tf.ones([N, D]), name="mine")
    state = tf.Variable(tf.ones(N), name="mine")
    message = "'mine:0' must be on the host"
    with pytest.raises(ValueError, match=message):
        ops.sparse_linear([0], None, [0, 1], table)
    with pytest.raises(ValueError, match=message):
        ops.max_norm([0], [1.0], state)
    return {}


RULES = {
    "sgd": optimizers.SGD,
    "momentum": optimizers.Momentum,
    "adagrad": optimizers.Adagrad,
    "rowwise_adagrad": optimizers.RowWiseAdagrad,
    "lazy_adam": optimizers.LazyAdam,
    "ftrl": optimizers.Ftrl,
}


@scenario
def embeddings_on_the_gpu_are_trained_there():
    found = {}
    ids = tf.constant([3, 1, 3])
    for name, rule in RULES.items():
        embedding = tf.keras.layers.Embedding(10, 4)
        embedding.build(None)
        optimizer = rule(0.1)

        def call(ids, embedding=embedding):
            return tf.reduce_sum(embedding(ids), axis=1, keepdims=True)

        step = step_of(call, optimizer, lambda embedding=embedding: embedding.trainable_variables)
        for _ in range(2):
            step(ids, tf.ones([3, 1]))
        on("GPU", embedding.embeddings, *slots_of(optimizer, (10, 4), (10,)))
        found[name] = np.array(embedding.embeddings)
    return found


@scenario
def bfloat16_weights_of_dense_layers_are_trained_on_the_gpu():
    dense = tf.keras.layers.Dense(3, dtype="bfloat16")
    optimizer = optimizers.Adagrad(0.1, rounding_seed=1)
    dense.build((None, 4))

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(inputs))
        variables = dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for _ in range(3):
        step(tf.constant([[1, 2, 3, 4], [0, 1, 0, 1]], tf.bfloat16))  # exact gradients
    on("GPU", *dense.trainable_variables, *slots_of(optimizer, (4, 3), (3,)))
    return weights_of(*dense.trainable_variables)


@scenario
def a_graph_of_version_1_trains():
    if not hasattr(tf, "estimator"):
        return {}
    from twml_ops import estimator

    ids, _, labels = arrays()
    rng = np.random.default_rng(3)
    start = tf.keras.initializers.Constant(rng.normal(size=(N, D)).astype(np.float32))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        linear = layers.SparseLinear(D, N, kernel_initializer=start)
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
        loss = tf.reduce_mean((dense(linear(tf.constant(ids))) - labels) ** 2)
        step = estimator.as_v1(optimizers.Adagrad(0.1)).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(2):
            session.run(step)
        kernel, out = session.run([linear.kernel, dense.kernel])
        on("CPU", linear.kernel)
    return {"kernel": kernel, "out": out}


def outcome(function):
    """The numbers that a scenario gives, by name, in a fresh Keras."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    return {name: np.asarray(value).tolist() for name, value in function().items()}


def main(plugin):
    global fake
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(plugin)
    fake = ctypes.CDLL(plugin)
    for name in ("to_device", "to_host"):
        getattr(fake, f"fake_gpu_bytes_{name}").restype = ctypes.c_int64
    fake.fake_gpu_largest_copy.restype = ctypes.c_int64
    assert len(tf.config.list_logical_devices("GPU")) == 2
    outcomes = {}
    for name, function in SCENARIOS.items():
        try:
            outcomes[name] = {"numbers": outcome(function)}
        except Exception:
            outcomes[name] = {"error": traceback.format_exc()[-4000:]}
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1])
