"""Feature crosses: DCN-v2 and factorization machines."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers

B, D = 7, 5


@pytest.fixture(autouse=True)
def _fresh_keras():
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)


def rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


ARGUMENTS = {
    "full": {},
    "low rank": {"rank": 2},
    "all": {"rank": 2, "activation": "tanh", "diag_scale": 0.5, "bias_initializer": "ones"},
    "no bias": {"use_bias": False},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("in_function", [False, True])
def test_a_cross_is_the_papers_equation(arguments, in_function):
    x0, x = rows(B, D), rows(B, D, seed=1)
    layer = layers.Cross(**arguments)
    call = tf.function(layer) if in_function else layer
    got = call(tf.constant(x0), tf.constant(x)).numpy()
    weights = layer.get_weights()
    w = weights[0] @ weights[1] if layer.rank else weights[0]
    b = weights[-1] if layer.use_bias else 0
    inner = x @ w + b
    inner = np.tanh(inner) if "activation" in arguments else inner
    want = x0 * (inner + layer.diag_scale * x) + x
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_low_rank_factors_start_differently():
    layer = layers.Cross(rank=D, kernel_initializer=tf.keras.initializers.RandomNormal(seed=None))
    layer(tf.constant(rows(B, D)))
    u, v, _ = layer.get_weights()
    assert np.abs(u - v).max() > 0


def test_n_crosses_are_a_polynomial_of_degree_n_plus_1():
    x0 = tf.constant([[0.5, 2.0]])
    ones = {"kernel_initializer": "ones", "use_bias": False}
    x = x0
    for degree in range(2, 5):
        x = layers.Cross(**ones)(x0, x)
        # With one input scaled by t the leading term grows as t^degree.
        big = tf.constant([[0.5e4, 2.0e4]])
        y = big
        for _ in range(degree - 1):
            y = layers.Cross(**ones)(big, y)
        assert np.log10(y.numpy()[0, 1] / x.numpy()[0, 1]) == pytest.approx(4 * degree, abs=0.7)


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("form", ["tensor", "list", "dict"])
def test_the_factorization_machine_is_the_sum_over_pairs(pool, form):
    v = rows(B, 4, D)
    want = sum(v[:, i] * v[:, j] for i in range(4) for j in range(i))
    want = want.sum(1, keepdims=True) if pool else want
    features = {f"f{i}": tf.constant(v[:, i]) for i in range(4)}
    inputs = {"tensor": tf.constant(v), "list": list(features.values()), "dict": features}[form]
    got = layers.FactorizationMachine(pool)(inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_one_feature_has_no_pairs():
    assert not layers.FactorizationMachine()(tf.constant(rows(B, 1, D))).numpy().any()


def model():
    inputs = {f: tf.keras.Input([3], dtype="int64", name=f) for f in ("user", "ad")}
    tables = {f: layers.SparseTable(20, D) for f in inputs}
    found = layers.GroupedSparseLinear(tables)(inputs)
    x0 = x = tf.keras.layers.Concatenate()(list(found.values()))
    for rank in (None, 3):
        x = layers.Cross(rank)(x0, x)
    joined = tf.keras.layers.Concatenate()([x, layers.FactorizationMachine()(found)])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(joined))


def test_a_model_of_crosses_trains_and_is_saved(tmp_path):
    rng = np.random.default_rng(0)
    data = {f: rng.integers(0, 20, (64, 3)) for f in ("user", "ad")}
    labels = ((data["user"] < 5).any(1) & (data["ad"] < 5).any(1)).astype(np.float32)[:, None]
    m = model()
    m.compile(optimizers.LazyAdam(0.02), "binary_crossentropy")
    losses = m.fit(data, labels, batch_size=16, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]
    m.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras")
    for got, want in zip(again.get_weights(), m.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    got, want = (each.predict(data, verbose=0) for each in (again, m))
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_mixed_precision_and_xla(jit_compile):
    x0 = tf.constant(rows(B, D))
    exact = layers.Cross(2)
    exact(x0)
    mixed = layers.Cross(2, dtype="mixed_bfloat16")
    mixed(x0)
    mixed.set_weights(exact.get_weights())
    assert {str(w.dtype) for w in mixed.get_weights()} == {"float32"}
    got = tf.function(mixed, jit_compile=jit_compile)(x0)
    assert got.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(got, tf.float32), exact(x0), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", [layers.Cross, layers.FactorizationMachine])
def test_config_makes_an_equal_layer(kind):
    arguments = {
        layers.Cross: {"rank": 3, "activation": "relu", "diag_scale": 0.1, "use_bias": False}
        | {"kernel_regularizer": tf.keras.regularizers.L2(0.1)},
        layers.FactorizationMachine: {"pool": False},
    }[kind]
    config = kind(**arguments, name="x").get_config()
    assert kind.from_config(config).get_config() == config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.Cross(rank=0), "rank must be a positive integer or None, got 0"),
        (lambda: layers.Cross(diag_scale=-1), "diag_scale must be finite and not negative, got -1"),
        (lambda: layers.Cross()(rows(B, D), rows(B, D - 1)), f"the width of x0, {D}, got {D - 1}"),
        (lambda: layers.FactorizationMachine()(rows(B, D)), "list of \\[B, d\\] of one width"),
        (
            lambda: layers.FactorizationMachine()([rows(B, D), rows(B, D + 1)]),
            "list of \\[B, d\\] of one width",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_cross_is_that_of_tensorflow_recommenders():
    try:
        import tensorflow_recommenders as tfrs
    except ImportError:
        pytest.skip("needs tensorflow-recommenders under TF_USE_LEGACY_KERAS=1")
    x0, x = tf.constant(rows(B, D)), tf.constant(rows(B, D, seed=1))
    for rank in (None, 2):
        theirs = tfrs.layers.feature_interaction.Cross(rank, diag_scale=0.3, preactivation="relu")
        ours = layers.Cross(rank, diag_scale=0.3, activation="relu")
        want = theirs(x0, x)
        ours(x0, x)
        ours.set_weights(theirs.get_weights())
        np.testing.assert_allclose(ours(x0, x), want, rtol=1e-6, atol=1e-6)
