"""The interactions of DHEN and its blocks equal their formulas, alone and stacked."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import research

B, F, D, L = 5, 4, 6, 3
MODULES = {
    "linear": (research.FieldLinear, {}),
    "dot": (research.FieldDot, {"hidden": (7,)}),
    "attention": (research.FieldAttention, {"num_heads": 2, "hidden": 5}),
    "cross": (research.FieldCross, {}),
    "low_rank_cross": (research.FieldCross, {"rank": 2}),
    "convolution": (research.FieldConvolution, {"filters": 2, "kernel_size": 3}),
}


@pytest.fixture(autouse=True)
def _fresh_keras(fresh_keras):
    """For every test."""


def vectors(rows=B, fields=F, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, fields, D)).astype(np.float32)


def made(name, **changed):
    kind, options = MODULES[name]
    layer = kind(L, **{**options, **changed})
    layer(vectors())
    randomize(layer)
    return layer


def randomize(layer):
    for i, v in enumerate(layer.trainable_variables):
        v.assign(tf.random.stateless_normal(v.shape, (3, i), stddev=0.5))


def norm(x, scale, offset, epsilon=1e-3):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * scale + offset


def value(layer, name):
    return np.asarray(tf.convert_to_tensor(getattr(layer, name)), np.float64)


def affine(layer, name, x):
    return x @ value(layer, name) + value(layer, f"{name}_bias")


def mix(layer, x):
    """[F, D] → [L, D]."""
    return value(layer, "fields").T @ x


def numpy_linear(layer, x):
    return mix(layer, x)


def numpy_dot(layer, x):
    products = np.array([x[i] @ x[j] for i in range(F) for j in range(i + 1, F)])
    hidden = np.maximum(affine(layer, "dense_0", products), 0)
    return affine(layer, "dense_1", hidden).reshape(L, D)


def numpy_attention(layer, x):
    q, k, v = (affine(layer, n, x) for n in ("query", "key", "value"))
    parts = []
    for h in range(2):
        part = slice(h * 3, h * 3 + 3)
        scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(3))
        parts.append(scores / scores.sum(1, keepdims=True) @ v[:, part])
    attended = affine(layer, "output_projection", np.hstack(parts))
    x = norm(x + attended, *(value(layer, f"attention_norm_{p}") for p in ("scale", "offset")))
    dense = affine(layer, "dense_1", np.maximum(affine(layer, "dense_0", x), 0))
    x = norm(x + dense, *(value(layer, f"dense_norm_{p}") for p in ("scale", "offset")))
    return mix(layer, x)


def numpy_cross(layer, x):
    flat = x.reshape(-1)
    reduced = flat if layer.rank is None else flat @ value(layer, "cross_factor")
    return mix(layer, (flat * affine(layer, "cross", reduced) + flat).reshape(F, D))


def numpy_convolution(layer, x):
    kernels, padded = value(layer, "kernels"), np.pad(x, 1)
    out = np.zeros((F, D))
    for i in range(F):
        for j in range(D):
            window = padded[i : i + 3, j : j + 3]
            sums = np.array([(window * kernels[:, :, 0, c]).sum() for c in range(2)])
            sums = np.maximum(sums + value(layer, "kernels_bias"), 0)
            out[i, j] = affine(layer, "images", sums)[0]
    return mix(layer, out)


REFERENCES = {
    "linear": numpy_linear,
    "dot": numpy_dot,
    "attention": numpy_attention,
    "cross": numpy_cross,
    "low_rank_cross": numpy_cross,
    "convolution": numpy_convolution,
}
every_module = pytest.mark.parametrize("name", MODULES)


@every_module
def test_every_module_is_its_formula(name):
    layer, x = made(name), vectors()
    want = np.stack([REFERENCES[name](layer, row.astype(np.float64)) for row in x])
    np.testing.assert_allclose(layer(x), want, rtol=1e-4, atol=1e-4)
    compiled = tf.function(layer, input_signature=[tf.TensorSpec([None, F, D])])
    np.testing.assert_allclose(compiled(x), want, rtol=1e-4, atol=1e-4)
    assert layer(x[:0]).shape == (0, L, D)
    assert layer.compute_output_shape((None, F, D)) == (None, L, D)


@every_module
def test_gradients_are_those_of_finite_differences(name):
    layer, x = made(name), tf.constant(vectors(rows=2))
    direction = tf.constant(vectors(rows=2, seed=1))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(layer(x) ** 2)
    slope = float(tf.reduce_sum(tape.gradient(y, x) * direction))
    step = 1e-3
    up, down = (float(tf.reduce_sum(layer(x + s * direction) ** 2)) for s in (step, -step))
    assert slope == pytest.approx((up - down) / (2 * step), rel=2e-2, abs=2e-2)


@every_module
def test_without_a_number_of_outputs_there_are_as_many_as_fields(name):
    kind, options = MODULES[name]
    assert kind(**options)(vectors()).shape == (B, F, D)


@every_module
def test_a_config_makes_an_equal_layer(name):
    layer = made(name)
    config = layer.get_config()
    again = type(layer).from_config(config)
    again(vectors())
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(vectors()), layer(vectors()))
    assert again.get_config() == config


def block_of(ensemble="concat", modules=tuple(research.DHEN_MODULES), outputs=L):
    block = research.DHENBlock(modules, outputs, ensemble)
    block(vectors())
    randomize(block)
    return block


@pytest.mark.parametrize("ensemble", ["concat", "sum", "weighted"])
@pytest.mark.parametrize("outputs", [L, F])
@pytest.mark.parametrize("modules", [("dot",), ("linear", "cross"), tuple(research.DHEN_MODULES)])
def test_a_block_is_its_formula(ensemble, outputs, modules):
    block, x = block_of(ensemble, modules, outputs), vectors()
    parts = [module(x).numpy().astype(np.float64) for module in block.modules]
    if ensemble == "concat":
        joined = np.concatenate(parts, axis=1)
    else:
        weights = value(block, "module_weights") if ensemble == "weighted" else np.ones(len(parts))
        joined = sum(w * p for w, p in zip(weights, parts, strict=True))
    same = joined.shape == x.shape
    kept = x if same else np.einsum("bfd,fl->bld", x, value(block, "shortcut"))
    assert (block.shortcut is None) == same
    want = norm(joined + kept, value(block, "scale"), value(block, "offset"))
    np.testing.assert_allclose(block(x), want, rtol=1e-3, atol=1e-4)
    assert block.compute_output_shape((None, F, D)) == (None, *want.shape[1:])


def test_equal_weights_give_the_mean_at_first():
    block = research.DHENBlock(("linear", "cross"), L, "weighted")
    block(vectors())
    np.testing.assert_allclose(value(block, "module_weights"), 0.5)


def stacked(depth=2):
    x = tf.keras.Input([F, D])
    y = x
    for i in range(depth):
        own = research.FieldLinear(2, name=f"own_{i}")
        y = research.DHENBlock([*research.DHEN_MODULES, own], L, name=f"block_{i}")(y)
    y = tf.keras.layers.Dense(1, "sigmoid")(tf.keras.layers.Flatten()(y))
    return tf.keras.Model(x, y)


@pytest.mark.parametrize("run_eagerly", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stack_trains_and_comes_back_from_a_file(tmp_path, run_eagerly):
    x = vectors(rows=64)
    y = (x[:, 0, 0] * x[:, 1, 0] > 0).astype(np.float32)[:, None]
    model = stacked()
    adam = tf.keras.optimizers.Adam(0.01)
    adam.build(model.trainable_variables)  # or the first step is traced twice
    model.compile(adam, "binary_crossentropy", run_eagerly=run_eagerly, jit_compile=False)
    losses = model.fit(x, y, batch_size=32, epochs=4, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
    for m in (model, again):  # and its training goes on
        m.fit(x, y, batch_size=32, verbose=0, shuffle=False)
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-3)


def test_all_weights_have_a_gradient_and_different_values():
    model = stacked()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(vectors()))
    gradients = tape.gradient(loss, model.trainable_variables)
    assert all(g is not None for g in gradients)
    seeded = research.FieldAttention(L, kernel_initializer=tf.keras.initializers.GlorotUniform(1))
    seeded(vectors())
    assert np.any(value(seeded, "query") != 0)


@pytest.mark.one_tf
def test_replicas_compute_the_same_gradient():
    from twml_ops import distribute

    strategy = distribute.mirrored_strategy(2)
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = stacked(1)
        model.compile(tf.keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    tf.keras.utils.set_random_seed(1)
    alone = stacked(1)
    alone.compile(tf.keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    alone.set_weights(model.get_weights())
    x, y = vectors(rows=16), np.ones((16, 1), np.float32)
    for m in (model, alone):
        m.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), verbose=0)
    for got, want in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: research.FieldLinear(0), "num_outputs must be a positive integer, got 0"),
        (lambda: research.FieldDot(2, hidden=(0,)), "hidden must be .*got 0"),
        (lambda: research.FieldAttention(2, num_heads=4)(vectors()), "num_heads must divide .* 6"),
        (lambda: research.FieldCross(2, rank=1.5), "rank must be .*got 1.5"),
        (lambda: research.FieldConvolution(2, filters=0), "filters must be .*got 0"),
        (lambda: research.FieldDot(2)(vectors(fields=1)), "at least two vectors"),
        (lambda: research.FieldLinear(2)(np.ones((2, 3), np.float32)), r"must be \[B, F, D\]"),
        (lambda: research.DHENBlock(()), "modules must be a sequence of at least one"),
        (lambda: research.DHENBlock("dot"), "modules must be a sequence"),
        (lambda: research.DHENBlock(["dots"]), r"modules\[0\] must be a layer or one of attention"),
        (lambda: research.DHENBlock(["dot"], ensemble="max"), "ensemble must be"),
        (
            lambda: research.DHENBlock([research.FieldLinear(1), "dot"], 2, "sum")(vectors()),
            "equal numbers of outputs",
        ),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
