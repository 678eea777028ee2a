"""`stateless_call` computes with the weights that it is given and changes no variable."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, ops, optimizers
from twml_ops._keras import KERAS_3

if not KERAS_3:
    pytest.skip("Keras 2 has no stateless_call", allow_module_level=True)

N, B, M, D = 9, 4, 3, 4
RNG = np.random.default_rng(2)
IDS = tf.constant(RNG.integers(0, N, (B, M)))
VALUES = tf.constant(RNG.normal(size=(B, M)).astype(np.float32))
BATCH = (IDS, VALUES)
DENSE = tf.constant(RNG.normal(size=(B, D)).astype(np.float32))
TABLES = {"a": layers.SparseTable(N, D), "b": layers.SparseTable(N, D, dtype="bfloat16")}

LAYERS = {
    "SparseLinear": (lambda: layers.SparseLinear(D, N), BATCH),
    "SparseLinear of bfloat16": (lambda: layers.SparseLinear(D, N, kernel_dtype="bfloat16"), BATCH),
    "SparseLinear by rows": (lambda: layers.SparseLinear(D, N, num_partitions=3), BATCH),
    "GroupedSparseLinear": (lambda: layers.GroupedSparseLinear(TABLES), {"a": BATCH, "b": BATCH}),
    "MaxNorm": (lambda: layers.MaxNorm(N), BATCH),
    "MaxNorm that decays": (lambda: layers.MaxNorm(N, decay=0.5), BATCH),
    "OnlineStandardize": (lambda: layers.OnlineStandardize(N), BATCH),
    "Cross": (layers.Cross, DENSE),
    "Cross of low rank": (lambda: layers.Cross(rank=2), DENSE),
    "FactorizationMachine": (layers.FactorizationMachine, [DENSE, 2 * DENSE]),
}


def other_values(variables):
    """Values that no initializer gives, of the variables' types."""
    rng = np.random.default_rng(8)
    return [tf.cast(rng.uniform(0.5, 2.0, v.shape), v.dtype) for v in variables]


def values_of(variables):
    return [tf.cast(tf.convert_to_tensor(v), tf.float64).numpy() for v in variables]


def assert_close(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def flat(outputs):
    """The float outputs of a layer."""
    return [y for y in tf.nest.flatten(outputs) if y.dtype.is_floating]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_stateless_call_equals_a_layer_that_has_the_weights(name, training, graph):
    make, inputs = LAYERS[name]
    layer, twin = make(), make()
    for made in (layer, twin):
        made(inputs)
    arguments = {"training": training} if "Norm" in name or "Standardize" in name else {}
    trainable = other_values(layer.trainable_variables)
    others = other_values(layer.non_trainable_variables)
    for variables, values in (
        (twin.trainable_variables, trainable),
        (twin.non_trainable_variables, others),
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    before = values_of(layer.variables)

    def stateless(trainable, others):
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            outputs, after = layer.stateless_call(trainable, others, inputs, **arguments)
            loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in flat(outputs)])
        return (
            flat(outputs),
            after,
            [tf.convert_to_tensor(g) for g in tape.gradient(loss, trainable)],
        )

    run = tf.function(stateless) if graph else stateless
    outputs, after, gradients = run(trainable, others)
    with tf.GradientTape() as tape:
        wanted = twin(inputs, **arguments)
        loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in flat(wanted)])
    variables = [v.value for v in twin.trainable_variables]
    assert_close(outputs, flat(wanted))
    assert_close(values_of(after), values_of(twin.non_trainable_variables))
    by_variables = tape.gradient(loss, variables)
    assert_close(
        values_of(gradients), [tf.cast(tf.convert_to_tensor(g), tf.float64) for g in by_variables]
    )
    assert [v.tobytes() for v in values_of(layer.variables)] == [v.tobytes() for v in before]


def test_a_scope_that_gives_no_value_still_keeps_the_state_from_changing():
    layer = layers.MaxNorm(N)
    layer(BATCH)
    before = layer.max_abs.numpy()
    with tf.keras.StatelessScope() as scope:
        layer(BATCH, training=True)
    np.testing.assert_array_equal(layer.max_abs, before)
    layer(BATCH, training=True)
    np.testing.assert_array_equal(scope.get_current_value(layer.max_abs), layer.max_abs)


def test_padding_stays_padding_in_xla_compatible_code():
    layer = layers.MaxNorm(N, bias_initializer="ones")
    ids = tf.constant([[1, -1]])
    values = tf.constant([[0.5, 0.0]])
    layer((ids, values))
    trainable, others = other_values(layer.trainable_variables), [tf.ones([N])]
    with ops.xla_compatible():
        (got_ids, got), _ = layer.stateless_call(trainable, others, (ids, values))
    np.testing.assert_array_equal(got_ids, ids)
    np.testing.assert_allclose(got, [[0.5 + trainable[0][1], 0.0]], rtol=1e-6)


def test_a_whole_model_trains_by_stateless_calls():
    """Discretizers and calibrations have state outside of Keras' variables, which stays."""
    ids, values = (tf.keras.Input((M,), dtype=t) for t in ("int64", "float32"))
    discretizer = layers.PercentileDiscretizer(2, unknown="error")
    discretizer.adapt((np.tile(np.arange(N), (20, 1)), RNG.normal(size=(20, N)).astype("f")))
    buckets = discretizer(layers.MaxNorm(N)([ids, values]))
    product = layers.SparseLinear(1, discretizer.output_dim)(buckets)
    calibration = layers.PlattScaling(from_logits=True)
    calibration.adapt([-1.0, 0.0, 1.0, 2.0], [0, 1, 0, 1])
    model = tf.keras.Model([ids, values], calibration(product))
    before = values_of(model.variables)
    boundaries = discretizer.state_variables[1].numpy()
    trainable = other_values(model.trainable_variables)
    others = other_values(model.non_trainable_variables)

    def loss_of(trainable, others):
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            y, others = model.stateless_call(trainable, others, [IDS, VALUES], training=True)
            loss = tf.reduce_mean((y - 1.0) ** 2)
        return loss, tape.gradient(loss, trainable), others

    losses = []
    for _ in range(4):
        loss, gradients, others = loss_of(trainable, others)
        steps = [0.0 if g is None else tf.convert_to_tensor(g) for g in gradients]
        trainable = [t - 5.0 * s for t, s in zip(trainable, steps, strict=True)]
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]
    assert [v.tobytes() for v in values_of(model.variables)] == [v.tobytes() for v in before]
    np.testing.assert_array_equal(discretizer.state_variables[1], boundaries)


@pytest.mark.parametrize("optimizer", [optimizers.SGD, optimizers.LazyAdam, optimizers.Ftrl])
def test_stateless_apply_is_refused_as_by_every_optimizer_on_tensorflow(optimizer):
    table = tf.keras.Variable(np.ones((N, D), np.float32))
    made = optimizer(0.1)
    made.build([table])
    state = [v.value for v in made.variables]
    gradient = tf.IndexedSlices(tf.ones([1, D]), tf.constant([2]), tf.constant([N, D]))
    with pytest.raises(ValueError, match="stateless_apply is not supported with the TensorFlow"):
        made.stateless_apply(state, [gradient], [table.value])
    np.testing.assert_array_equal(table, np.ones((N, D)))
