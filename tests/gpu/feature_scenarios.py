"""Normalizations, discretizers and fields with their state on the GPU; see device_scenarios.py."""

import contextlib
import itertools
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
    has_gpu,
    scenario,
    slots_of,
    sparse_mlp_data,
    step_of,
    weights_of,
)
from twml_ops import _keras, checkpoint, layers, models, ops, optimizers
from twml_ops.ops._library import library
from twml_ops.placement import DevicePlacement, placement_scope

ENTRIES = B * WIDTH
BATCH_BYTES = ENTRIES * (8 + 4) + (B + 1) * 8  # ids, values and row splits
SMALL = 4096  # scalars and shapes


def table_of(placement, rows=N):
    initializer = tf.keras.initializers.Constant(0.01)
    return layers.SparseLinear(
        D, rows, use_bias=False, kernel_initializer=initializer, placement=placement
    )


def trained_norm(placement, form, **kwargs):
    """Trains a normalization and a table behind it. Returns both, the optimizer and a step."""
    norm = layers.MaxNorm(N, bias_initializer="ones", placement=placement, **kwargs)
    linear, optimizer = table_of(placement), optimizers.Adagrad(0.1, clipvalue=0.5)
    inputs, labels = batch(form)

    def call(inputs):
        return tf.reduce_sum(tf.tanh(linear(norm(inputs, training=True))), axis=1, keepdims=True)

    call(inputs)
    step = step_of(call, optimizer, lambda: [norm.bias, *linear.trainable_variables])
    for _ in range(3):
        step(inputs, labels)
    return norm, linear, optimizer, lambda: step(inputs, labels)


@scenario
def max_norm_on_the_gpu_trains_like_on_the_host():
    found = {}
    for form, decay in (("ragged", 1.0), ("sparse", 0.9), ("padded", 0.9), ("binary", 1.0)):
        runs = [trained_norm(p, form, decay=decay) for p in ("device", "host")]
        for where, (norm, linear, optimizer, _) in zip(("GPU", "CPU"), runs, strict=True):
            slots = slots_of(optimizer, (N,), (N, D))
            assert len(slots) == 2
            assert_on(where, norm.max_abs, norm.bias, linear.kernel, *slots)
        np.testing.assert_array_equal(*(run[0].max_abs for run in runs))
        for i in range(2):
            weights = [weights_of(*run[i].trainable_variables)["0"] for run in runs]
            np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-7)
            found[f"{form} {i}"] = weights[1][::20]
    return found


@scenario
def max_norm_on_the_gpu_keeps_float32_in_mixed_precision():
    inputs, _ = batch("ragged")
    outputs = []
    for placement in ("device", "host"):
        norm = layers.MaxNorm(N, placement=placement, dtype="mixed_bfloat16")
        with tf.GradientTape() as tape:
            tape.watch(inputs[1].flat_values)
            values = norm(inputs, training=True)[1].flat_values
        assert values.dtype == tf.float32
        outputs.append([values, tape.gradient(values, inputs[1].flat_values)])
    for a, b in zip(*outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    return {"values": outputs[1][0].numpy(), "gradient": outputs[1][1].numpy()}


DISCRETIZERS = {
    "percentile": lambda **k: layers.PercentileDiscretizer(4, pass_through_bits=5, **k),
    "right": lambda **k: layers.PercentileDiscretizer(
        4, side="right", unknown="drop", missing="drop", keep_inputs=True, **k
    ),
    "hashing": lambda **k: layers.HashingDiscretizer(6, num_bins=4, **k),
    "hashed inputs": lambda **k: layers.HashingDiscretizer(
        6, num_bins=4, unknown="drop", keep_inputs=True, **k
    ),
    "mdl": lambda **k: layers.MDLDiscretizer(pass_through_bits=5, **k),
}


def adapted(name, **kwargs):
    """A discretizer that knows half of the features of `with_nans`."""
    inputs, labels = batch("ragged", top=20)
    ids, values = inputs
    layer = DISCRETIZERS[name](**kwargs)
    data = ((ids, values), labels[:, 0]) if name == "mdl" else (ids, values)
    layer.adapt(tf.data.Dataset.from_tensors(data))
    return layer


def with_nans(form):
    """A batch of 40 features, half of which were adapted, with a NaN in each tenth entry."""
    (ids, values), labels = batch("ragged", seed=1, top=40)
    with tf.device("CPU:0"):
        position = tf.range(ENTRIES)
        flat = tf.where(position % 10 == 3, np.float32("nan"), values.flat_values)
        values = values.with_flat_values(flat)
        if form == "padded":
            return (ids.to_tensor(-1), values.to_tensor(0.0)), labels
        if form == "sparse":
            rows = ids.value_rowids()
            indices = tf.stack([rows, ids.flat_values], axis=1)
            return tf.SparseTensor(indices, flat, [B, N]), labels
    return (ids if form == "binary" else (ids, values)), labels


def dense_parts(buckets):
    """The tensors of a batch in any form."""
    return [np.asarray(t) for t in tf.nest.flatten(buckets, expand_composites=True)]


@scenario
def discretizers_on_the_gpu_give_the_buckets_of_the_host():
    found = {}
    for name in DISCRETIZERS:
        pair = [adapted(name, placement=p) for p in ("device", "host")]
        assert_on("GPU", *pair[0].state_variables)
        assert_on("CPU", *pair[1].state_variables)
        for form in ("ragged", "binary", "padded", "sparse"):
            inputs, _ = with_nans(form)
            got, want = (dense_parts(layer(inputs)) for layer in pair)
            in_graph = dense_parts(tf.function(pair[0])(inputs))
            for a, b, c in zip(got, want, in_graph, strict=True):
                np.testing.assert_array_equal(a, b)
                np.testing.assert_array_equal(c, b)
            found[f"{name} {form}"] = np.nan_to_num(want[0].astype(np.float64))
    return found


def pipeline(placement, discretizer, form):
    """Trains the whole path of a continuous feature. Returns its variables and a step."""
    buckets = adapted(discretizer, placement=placement)
    rows = buckets.output_dim
    norm, linear = layers.MaxNorm(rows, placement=placement), table_of(placement, rows)
    optimizer = optimizers.LazyAdam(0.01)
    inputs, labels = batch(form, seed=1, top=40)

    def call(inputs):
        normed = norm(buckets(inputs), training=True)
        return tf.reduce_sum(tf.tanh(linear(normed)), axis=1, keepdims=True)

    call(inputs)
    variables = [norm.bias, *linear.trainable_variables]
    step = step_of(call, optimizer, lambda: variables)
    for _ in range(2):
        step(inputs, labels)
    return [norm.max_abs, *variables], lambda: step(inputs, labels)


@scenario
def a_step_with_all_state_on_the_gpu_moves_the_batch_only():
    found = {}
    for name, form in itertools.product(("percentile", "hashed inputs"), ("ragged", "sparse")):
        variables, step = pipeline("device", name, form)
        to_device, to_host, largest = copied_bytes(step)
        assert to_device <= BATCH_BYTES + B * 64 + SMALL, to_device
        assert to_host <= SMALL, to_host
        assert largest <= ENTRIES * 8, largest
        expected, host_step = pipeline("host", name, form)
        host_step()
        for a, b in zip(variables, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        found |= {f"{name} {form} {k}": value for k, value in weights_of(*expected).items()}
    return found


@scenario
def sums_of_duplicates_on_the_gpu_are_those_of_the_host():
    rng = np.random.default_rng(0)
    found = {}
    for dtype, top in ((np.int32, 50), (np.int64, 1 << 62)):
        ids = rng.integers(0, top, 5000).astype(dtype)
        ids[::2] = 7
        rows = rng.normal(size=(5000, 3)).astype(np.float32)
        outputs = []
        for device in ("/device:GPU:0", None) if has_gpu() else (None, None):
            with library.beside(device):
                outputs.append(ops.sum_duplicates(ids, rows))
        for a, b in zip(*outputs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        found[str(dtype)] = outputs[1][1].numpy()
    return found


def raises_late(call, message):
    """Asserts that a call with bad input is reported by the next one, once."""
    call(True)
    tf.test.experimental.sync_devices()  # a card works on, while the host goes to the next op
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(False)
    call(False)


@scenario
def bad_input_of_features_on_the_gpu_raises_at_the_latest_in_the_next_step():
    if not has_gpu():
        return {}
    norm = layers.MaxNorm(4, placement="device")
    ids = tf.constant([[1, 2]], tf.int64)

    def normalize(bad):
        norm((ids, tf.constant([[np.inf if bad else 1.0, 2.0]])), training=True)
        np.testing.assert_array_equal(norm.max_abs, [0, 0 if bad else 1, 2, 0])

    raises_late(normalize, "1 values are not finite")
    raises_late(
        lambda bad: norm((ids + 3 * int(bad), tf.ones([1, 2]))), r"2 ids are out of range.*ids\[0\]"
    )
    unknown = layers.PercentileDiscretizer(4, unknown="error", placement="device")
    unknown.set_boundaries({1: [0.5], 2: [1.5]})
    raises_late(
        lambda bad: unknown((ids + int(bad), tf.ones([1, 2]))), "1 ids are not ids of adapted"
    )

    def with_splits(bad):
        with tf.device("GPU:0"):
            buckets = [[1, 2], [0.5, 1.5], [0, 9, 2] if bad else [0, 1, 2]]
            variables = [tf.Variable(np.array(b)) for b in buckets]
            variables[1] = tf.Variable(np.array(buckets[1], np.float32))
        found, _, _ = ops.percentile_discretize(ids[0], tf.ones([2]), [0, 2], *variables)
        assert (found.numpy() < 8).all()

    raises_late(with_splits, "items of boundary_splits decrease")
    with tf.device("GPU:0"):
        short = [tf.Variable(np.array(b)) for b in ([1], [0])]
        boundaries = tf.Variable(np.zeros(0, np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="boundary_splits must have 2 items"):
        ops.percentile_discretize(ids[0], None, [0, 2], short[0], boundaries, short[1])
    return {}


def feature_model(placement):
    """A model of a discretizer, a normalization and a table."""
    buckets = adapted("hashing", placement=placement)
    inputs = tf.keras.Input((None,), dtype="int64", ragged=True)
    norm = layers.MaxNorm(64, placement=placement)
    hidden = table_of(placement, 64)(norm(buckets(inputs)))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    model.compile(optimizers.Adagrad(0.1), "mse", jit_compile=False)
    return model, [*buckets.state_variables, norm.max_abs, norm.bias]


def states_of(model):
    return [
        v
        for layer in _keras.all_layers(model)
        for v in (
            layer.state_variables
            if isinstance(layer, layers.HashingDiscretizer)
            else layer.variables
            if isinstance(layer, layers.MaxNorm)
            else ()
        )
    ]


@scenario
def files_and_checkpoints_of_features_move_between_the_host_and_the_gpu():
    ids, labels = batch("binary", top=40)
    found = {}
    for source, target in (("device", "host"), ("host", "device")):
        first, _ = feature_model(source)
        first.train_on_batch(ids, labels)
        want = first(ids).numpy()
        with tempfile.TemporaryDirectory() as folder:
            first.save(Path(folder) / "model.keras")
            loaded = tf.keras.models.load_model(Path(folder) / "model.keras")
            assert_on("GPU" if source == "device" else "CPU", *states_of(loaded))
            np.testing.assert_allclose(loaded(ids), want, rtol=1e-6)
            clone = tf.keras.models.clone_model(first)
            assert_on("GPU" if source == "device" else "CPU", *states_of(clone))
            path = tf.train.Checkpoint(model=first).write(str(Path(folder) / "ckpt"))
            second, states = feature_model(target)
            tf.train.Checkpoint(model=second).read(path).assert_existing_objects_matched()
            np.testing.assert_allclose(second(ids), want, rtol=1e-5)
            with checkpoint.CheckpointManager(Path(folder) / "m", background=False) as manager:
                manager.save(1, checkpoint.variables_of(first), {})
                third, _ = feature_model(target)
                third.train_on_batch(ids, labels)
                checkpoint.restore(manager.latest(), checkpoint.variables_of(third))
            np.testing.assert_allclose(third(ids), want, rtol=1e-5)
        assert_on("GPU" if target == "device" else "CPU", *states, *states_of(third))
        found[source] = want
    return found


@scenario
def a_block_places_the_whole_sparse_mlp():
    schema, features, dataset = sparse_mlp_data(32)
    found = []
    for place in (DevicePlacement() if has_gpu() else None, None):
        tf.keras.utils.set_random_seed(3)
        with placement_scope(place) if place else contextlib.nullcontext():
            model = models.sparse_mlp(
                schema, dataset, units=8, hidden=(5,), dropout=0.0, categorical_bits=8
            )
        for layer in _keras.all_layers(model):
            if isinstance(layer, layers.SparseLinear):
                assert_on("GPU" if place else "CPU", *layer.kernels)
            elif isinstance(layer, layers.MaxNorm):
                assert_on("GPU" if place else "CPU", *layer.variables)
            elif isinstance(layer, layers.PercentileDiscretizer):
                assert_on("GPU" if place else "CPU", *layer.state_variables)
        model.compile(optimizers.LazyAdam(0.01), "binary_crossentropy", jit_compile=False)
        model.fit(dataset, epochs=2, shuffle=False, verbose=0)
        found.append(model(features).numpy())
    np.testing.assert_allclose(*found, rtol=1e-4)
    return {"scores": found[1]}


FIELDS = {
    "pooled": {"units": 8, "pooling": "sum"},
    "vectors": {"units": 8, "l2": 0.01},
    "widths": {"units": [8, 8, 4, 4], "projected_units": 8},
    "bags": {"units": 8, "num_bags": 1},
}


def embedded(on_gpu, name):
    """Trains an embedding of four fields. Returns its tables, the weights and a step."""
    options = {"out_of_range": "wrap", **FIELDS[name]}
    tf.keras.utils.set_random_seed(3)
    with placement_scope(DevicePlacement()) if on_gpu else contextlib.nullcontext():
        layer = layers.FieldEmbedding([50] * 4, embeddings_initializer="ones", **options)
        layer.build()
    rng = np.random.default_rng(0)
    fields = 4 - options.get("num_bags", 0)
    with tf.device("CPU:0"):
        matrix = tf.constant(rng.integers(-1, 1000, (B, fields)))
        inputs = [matrix, batch("binary")[0]] if fields < 4 else matrix
        labels = tf.constant(rng.normal(size=(B, 1)).astype(np.float32))

    def call(inputs):
        vectors = tf.reshape(tf.tanh(layer(inputs)), [B, -1])
        return tf.reduce_sum(vectors, axis=1, keepdims=True)

    call(inputs)
    step = step_of(call, optimizers.Adagrad(0.1), lambda: layer.trainable_variables)
    for _ in range(2):
        step(inputs, labels)
    return [table.variable for table in layer.tables], layer, lambda: step(inputs, labels)


@scenario
def vectors_of_fields_stay_on_the_gpu():
    found = {}
    for name in FIELDS:
        on_gpu, of_gpu, step = embedded(has_gpu(), name)
        on_host, of_host, host_step = embedded(False, name)
        assert_on("GPU", *on_gpu)
        assert_on("CPU", *on_host)
        weights = [weights_of(*layer.trainable_variables) for layer in (of_gpu, of_host)]
        for key, expected in weights[1].items():
            np.testing.assert_allclose(weights[0][key], expected, rtol=1e-5, atol=1e-6)
        to_device, to_host, largest = copied_bytes(step)
        entries = B * 4 if name != "bags" else B * (3 + WIDTH)
        assert to_device <= entries * (8 + 4) + (4 * B + 1) * 8 + SMALL, (name, to_device)
        assert to_host <= SMALL, (name, to_host)
        assert largest <= max(entries, 4 * B + 1) * 8, (name, largest)
        activations = B * 4 * 8 * 4
        to_device, to_host, largest = copied_bytes(host_step)
        assert max(to_device, to_host, largest) <= activations + SMALL, (name, to_device, to_host)
        found |= {f"{name} {key}": value for key, value in weights[1].items()}
    return found


def partitioned(placement, axis):
    """Trains a table in two partitions. Returns its kernels and a step."""
    linear = layers.SparseLinear(
        D,
        N,
        num_partitions=2,
        partition_axis=axis,
        kernel_initializer="ones",
        placement=placement,
    )
    inputs, labels = batch("ragged")

    def call(inputs):
        return tf.reduce_sum(tf.tanh(linear(inputs)), axis=1, keepdims=True)

    call(inputs)
    step = step_of(call, optimizers.SGD(0.1), lambda: linear.trainable_variables)
    step(inputs, labels)
    return weights_of(*linear.kernels), lambda: step(inputs, labels)


@scenario
def sums_of_partitions_stay_on_the_gpu():
    found = {}
    for axis in ("row", "column"):
        on_gpu, step = partitioned("device", axis)
        on_host, _ = partitioned("host", axis)
        _, to_host, _ = copied_bytes(step)
        assert to_host <= SMALL, to_host
        for key, expected in on_host.items():
            np.testing.assert_allclose(on_gpu[key], expected, rtol=1e-5, atol=1e-6)
            found[f"{axis} {key}"] = expected[::50]
    return found
