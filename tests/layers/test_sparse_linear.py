"""The SparseLinear layer: every batch form, partitions, saving, fitting, precision, errors."""

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.conftest import FORMS, in_form, inputs_of
from tests.pairwise import each_value
from twml_ops import layers, optimizers
from twml_ops.ops._tape import tf_variable

pytestmark = pytest.mark.usefixtures("fresh_keras")

N, D, B, WIDTH = 12, 5, 6, 4


def padded(rows=B, seed=0):
    """Ids and values [rows, WIDTH]: sorted unique ids first, then padding; row 0 is empty."""
    rng = np.random.default_rng(seed)
    ids = np.full((rows, WIDTH), -1, np.int64)
    for b in range(1, rows):
        length = rng.integers(0, WIDTH + 1)
        ids[b, :length] = np.sort(rng.choice(N, length, replace=False))
    values = np.where(ids >= 0, rng.normal(size=ids.shape), 0).astype(np.float32)
    return ids, values


def dense(ids, values):
    x = np.zeros((len(ids), N), np.float32)
    for b, k in zip(*np.nonzero(ids >= 0), strict=True):
        x[b, ids[b, k]] += values[b, k]
    return x


def model_of(form, **layer):
    inputs = inputs_of(form, N, WIDTH)
    hidden = layers.SparseLinear(D, N, **layer)(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))


def batches(form, rows=4 * B):
    ids, values = padded(rows)
    labels = np.random.default_rng(5).normal(size=(rows, 1)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((in_form(form, ids, values, N), labels))
    return dataset.batch(B)


def compiled(model, **arguments):
    model.compile(optimizers.Adagrad(0.1), "mse", **arguments)
    return model


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_dense_product(form, graph):
    layer = layers.SparseLinear(D, N, activation="tanh", bias_initializer="ones")
    ids, values = padded()
    batch = in_form(form, ids, values, N)
    got = (tf.function(layer) if graph else layer)(batch)
    want = np.tanh(dense(ids, values) @ layer.kernel.numpy() + 1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_binary_batches():
    ids, _ = padded()
    layer = layers.SparseLinear(D, N, use_bias=False)
    ragged = tf.RaggedTensor.from_row_lengths(ids[ids >= 0], (ids >= 0).sum(axis=1))
    layer.build()
    want = dense(ids, np.ones_like(ids)) @ layer.kernel.numpy()
    for batch in (ragged, tf.constant(ids), tf.constant(ids, tf.int32)):
        np.testing.assert_allclose(layer(batch), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_batch_and_an_unknown_batch_size(form):
    model = model_of(form)
    ids, values = padded(0)
    assert model(in_form(form, ids, values, N)).shape == (0, 1)
    assert model.output_shape == (None, 1)

    @tf.function
    def predict(batch):
        return model(batch)

    ids, values = padded(3)
    assert predict(in_form(form, ids, values, N)).shape == (3, 1)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_every_form_trains_to_the_same_weights(run_eagerly):
    weights = []
    for form in FORMS:
        tf.keras.utils.set_random_seed(1)
        model = compiled(model_of(form), run_eagerly=run_eagerly)
        model.fit(batches(form), epochs=2, verbose=0)
        weights.append(model.get_weights())
    for other in weights[1:]:
        for got, want in zip(other, weights[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_every_form_gives_the_same_bits():
    layer = layers.SparseLinear(D, N)
    batches = [in_form(form, *padded(), N) for form in FORMS]
    assert len({layer(batch).numpy().tobytes() for batch in batches}) == 1


# Partitions -------------------------------------------------------------------------------------

PARTITIONS = [
    *(("row", p, D) for p in (1, 2, 3, 4)),
    *(("column", p, 12) for p in (1, 2, 3, 4)),
]


@pytest.mark.parametrize(("axis", "count", "units"), PARTITIONS)
def test_partitions_equal_the_unpartitioned_layer(axis, count, units):
    rng = np.random.default_rng(2)
    kernel = rng.normal(size=(N, units)).astype(np.float32)
    ids, values = padded()
    target = rng.normal(size=(B, units)).astype(np.float32)

    def train(**arguments):
        layer = layers.SparseLinear(
            units, N, kernel_initializer=tf.keras.initializers.Constant(kernel), **arguments
        )
        optimizer = optimizers.Adagrad(0.1)
        batch = in_form("padded", ids, values, N)
        layer(batch)
        optimizer.build(layer.trainable_variables)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                y = layer(batch)
                loss = tf.reduce_sum((y - target) ** 2)
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
            return y

        return [step() for _ in range(3)], layer

    want, whole = train()
    got, split = train(num_partitions=count, partition_axis=axis)
    assert len(split.kernels) == count
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
    kernels = [k.numpy() for k in split.kernels]
    if axis == "column":
        joined = np.concatenate(kernels, axis=1)
    else:
        joined = np.zeros((N, units), np.float32)
        for p, part in enumerate(kernels):
            joined[p::count] = part
    np.testing.assert_allclose(joined, whole.kernel.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", ["row", "column"])
def test_a_model_that_keras_builds_by_tracing_may_be_partitioned(axis):
    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.linear = layers.SparseLinear(4, N, num_partitions=2, partition_axis=axis)

        def call(self, inputs):
            return self.linear(inputs)

    assert Model()(tf.constant([[1, 2]])).shape == (1, 4)


def test_one_seed_gives_one_kernel_however_it_is_split():
    def kernels(**arguments):
        initializer = tf.keras.initializers.GlorotUniform(seed=7)
        layer = layers.SparseLinear(4, N, kernel_initializer=initializer, **arguments)
        layer.build()
        return [k.numpy() for k in layer.kernels]

    (whole,) = kernels()
    rows = kernels(num_partitions=3)
    columns = kernels(num_partitions=2, partition_axis="column")
    for p in range(3):
        np.testing.assert_array_equal(rows[p], whole[p::3])
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), whole)


@pytest.mark.parametrize("axis", ["row", "column"])
@pytest.mark.parametrize("bad", [-1, N])
def test_a_partitioned_layer_refuses_the_ids_an_unpartitioned_one_refuses(axis, bad):
    layer = layers.SparseLinear(4, N, num_partitions=2, partition_axis=axis)
    batch = tf.RaggedTensor.from_row_lengths(tf.constant([0, bad], tf.int64), [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of range"):
        layer(batch)


# Saving -----------------------------------------------------------------------------------------

CONFIGS = [
    {},
    {"use_bias": False, "activation": "relu", "kernel_initializer": "zeros"},
    {"num_partitions": 3, "bias_initializer": "ones", "name": "shards", "trainable": False},
    {"units": 4, "num_partitions": 2, "partition_axis": "column"},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_get_config_round_trip(config):
    layer = layers.SparseLinear(**{"units": D, "input_dim": N, **config})
    again = layers.SparseLinear.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    for name in ("units", "input_dim", "num_partitions", "partition_axis", "use_bias", "trainable"):
        assert getattr(again, name) == getattr(layer, name)


@each_value(form=FORMS, partitions=[1, 3])
def test_keras_file_round_trip(form, partitions, tmp_path):
    model = compiled(model_of(form, num_partitions=partitions))
    model.fit(batches(form), verbose=0)
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    for got, want in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    batch = in_form(form, *padded(), N)
    np.testing.assert_allclose(again(batch), model(batch), rtol=1e-6)
    for m in (model, again):
        m.fit(batches(form), verbose=0)
    for got, want in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_saved_model_round_trip(form, tmp_path):
    model = model_of(form)
    want = model(in_form(form, *padded(), N))

    @tf.function
    def serve(ids, values):
        return model(in_form_of_tensors(form, ids, values))

    signature = [tf.TensorSpec([None, WIDTH], t) for t in (tf.int64, tf.float32)]
    module = tf.Module()
    # Not the model: its own signature has a dense [B, N] for a sparse input.
    module.tables = [tf_variable(w) for w in model.weights]
    module.serve = serve.get_concrete_function(*signature)
    tf.saved_model.save(module, str(tmp_path))
    with tf.device("CPU:0"):  # with a GPU, TensorFlow would restore the variables there
        again = tf.saved_model.load(str(tmp_path))
    ids, values = padded()
    np.testing.assert_allclose(again.serve(tf.constant(ids), tf.constant(values)), want, rtol=1e-6)


def in_form_of_tensors(form, ids, values):
    if form == "padded":
        return ids, values
    present = ids >= 0
    if form == "ragged":
        return tuple(tf.ragged.boolean_mask(a, present) for a in (ids, values))
    positions = tf.where(present)
    columns = tf.boolean_mask(ids, present)
    indices = tf.stack([positions[:, 0], columns], axis=1)
    shape = tf.stack([tf.shape(ids, tf.int64)[0], N])
    return tf.SparseTensor(indices, tf.boolean_mask(values, present), shape)


def test_checkpoint_round_trip(tmp_path):
    def make():
        model = compiled(model_of("padded", num_partitions=2))
        model.fit(batches("padded"), verbose=0)
        return model, tf.train.Checkpoint(model=model, optimizer=model.optimizer)

    model, checkpoint = make()
    path = checkpoint.save(str(tmp_path / "checkpoint"))
    tf.keras.utils.set_random_seed(99)
    other, into = make()
    into.restore(path).assert_existing_objects_matched()
    for got, want in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    for m in (model, other):
        m.fit(batches("padded"), verbose=0)
    for got, want in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# Training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_fit_evaluate_predict(form, run_eagerly):
    model = compiled(model_of(form), run_eagerly=run_eagerly)
    before = model.evaluate(batches(form), verbose=0)
    model.fit(batches(form), epochs=5, verbose=0)
    assert model.evaluate(batches(form), verbose=0) < before
    assert model.predict(batches(form), verbose=0).shape == (4 * B, 1)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_computes_in_float32_and_returns_the_compute_dtype(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    layer = layers.SparseLinear(D, N)
    ids, values = padded()
    values += np.float32(1e-4)  # lost in half precision
    got = layer(in_form("padded", ids, values, N))
    assert got.dtype.name == policy.removeprefix("mixed_")
    assert tf.as_dtype(layer.kernel.dtype) == tf.float32
    whole = layers.SparseLinear(D, N, dtype="float32")
    whole.build(None)
    whole.set_weights(layer.get_weights())
    want = whole(in_form("padded", ids, values, N))
    np.testing.assert_array_equal(got, tf.cast(want, got.dtype))


def test_a_frozen_layer_does_not_change():
    model = model_of("padded", trainable=False)
    assert len(model.trainable_weights) == 2
    before = [w.numpy() for w in model.layers[-2].weights]
    compiled(model).fit(batches("padded"), verbose=0)
    for got, want in zip(model.layers[-2].weights, before, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": 0}, "units must be a positive integer, got 0"),
        ({"input_dim": -1}, "input_dim must be a positive integer, got -1"),
        ({"units": 2.5}, "units must be a positive integer, got 2.5"),
        ({"num_partitions": 0}, "num_partitions must be a positive integer, got 0"),
        ({"num_partitions": N + 1}, f"num_partitions must not exceed input_dim {N}, got {N + 1}"),
        ({"partition_axis": "diagonal"}, 'partition_axis must be "row" or "column"'),
        (
            {"num_partitions": 2, "partition_axis": "column"},
            f"num_partitions must divide units {D}, got 2",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.SparseLinear(**{"units": D, "input_dim": N, **arguments})


def test_inputs_of_no_form_are_refused():
    layer = layers.SparseLinear(D, N)
    with pytest.raises(ValueError, match=r"inputs must be a tf\.SparseTensor"):
        layer(tf.ones([B, N]))


@pytest.mark.parametrize("form", FORMS)
def test_ids_out_of_range_are_refused(form):
    ids, values = padded()
    ids[2, :2] = [0, N]
    layer = layers.SparseLinear(D, N)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 12 is out of range \[0, 12\)"):
        layer(in_form(form, ids, values, N))


def test_a_partitioned_layer_has_no_attribute_kernel():
    layer = layers.SparseLinear(D, N, num_partitions=2)
    layer.build()
    with pytest.raises(AttributeError, match="split into 2: see `kernels`"):
        _ = layer.kernel


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((None, N), None), ([(None, WIDTH), (None, WIDTH)], None), (((B, None), (B, None)), B)],
)
def test_compute_output_shape(shape, rows):
    assert tuple(layers.SparseLinear(D, N).compute_output_shape(shape)) == (rows, D)


@pytest.mark.parametrize("num_partitions", [1, 2])
def test_a_checkpoint_without_optimizer_holds_the_kernels(tmp_path, num_partitions):
    ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    modules = [tf.Module(), tf.Module()]
    for module in modules:
        module.layer = layers.SparseLinear(4, 10, num_partitions=num_partitions)
        module.layer(ids)
    path = tf.train.Checkpoint(model=modules[0]).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=modules[1]).restore(path).assert_consumed()
    np.testing.assert_array_equal(modules[0].layer(ids), modules[1].layer(ids))


# bfloat16 kernels --------------------------------------------------------------------------------


@each_value(
    optimizer=["SGD", "Adagrad", "RowWiseAdagrad", "LazyAdam", "Ftrl"],
    partitions=[{}, {"num_partitions": 2}],
)
def test_a_bfloat16_kernel_trains_like_a_float32_one(optimizer, partitions, tmp_path):
    losses, start = {}, None
    for dtype in ("float32", "bfloat16"):
        model = tf.keras.Sequential(
            [
                tf.keras.Input([WIDTH], dtype="int64"),
                layers.SparseLinear(D, N, "relu", kernel_dtype=dtype, **partitions),
                tf.keras.layers.Dense(1, "sigmoid"),
            ]
        )
        start = start or [v.numpy().copy() for v in model.trainable_variables]
        for variable, value in zip(model.trainable_variables, start, strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        model.compile(getattr(optimizers, optimizer)(0.1), "binary_crossentropy")
        ids = np.random.default_rng(0).integers(0, N, (256, WIDTH))
        labels = (ids.min(axis=1, keepdims=True) < 2).astype(np.float32)
        losses[dtype] = model.fit(ids, labels, epochs=3, verbose=0, shuffle=False).history["loss"]
    assert abs(losses["float32"][-1] - losses["bfloat16"][-1]) < 0.03
    assert losses["bfloat16"][-1] < losses["bfloat16"][0]
    kernel = model.layers[0].kernels[0]
    assert tf.as_dtype(kernel.dtype) == tf.bfloat16
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    for got, want in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(np.float32(got), np.float32(want))
    got, want = (m.predict(ids, verbose=0) for m in (again, model))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_an_unknown_kernel_dtype_is_refused():
    with pytest.raises(ValueError, match="kernel_dtype must be"):
        layers.SparseLinear(D, N, kernel_dtype="float16")
