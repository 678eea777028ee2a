"""`TowerModule` against its formula, its gradients, and what leaves a tower."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers, research

B, F, D = 6, 5, 3
FIELDS = [3, 0, 4]

MODULES = {
    "all fields": {},
    "some fields": {"fields": FIELDS},
    "low rank": {"fields": FIELDS, "rank": 2, "num_crosses": 2, "ratio": 0.5},
    "projection alone": {"num_crosses": 0, "ratio": 1 / 16},
    "everything leaves": {"fields": [1], "ratio": 1.0},
}


@pytest.fixture(autouse=True)
def _fresh_keras():
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)


def vectors(rows=B, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, F, D)).astype(np.float32)


def made(name):
    """A layer whose biases are not zero."""
    layer = research.TowerModule(**MODULES[name])
    layer(vectors())
    rng = np.random.default_rng(2)
    layer.set_weights([w + 0.1 * rng.normal(size=w.shape) for w in layer.get_weights()])
    return layer


def numpy_tower(layer, x):
    """The formula, one row at a time."""
    outputs = []
    for row in x.astype(np.float64):
        x0 = y = np.concatenate([row[f] for f in layer.fields or range(F)])
        for cross in layer.cross_layers():
            *factors, bias = (np.asarray(w, np.float64) for w in cross.get_weights())
            product = y
            for factor in factors:
                product = product @ factor
            y = x0 * (product + bias) + y
        outputs.append(y @ layer.kernel.numpy() + layer.bias.numpy())
    return np.stack(outputs)


every_module = pytest.mark.parametrize("name", MODULES)


@every_module
def test_a_tower_is_its_formula(name):
    layer, x = made(name), vectors()
    want = numpy_tower(layer, x)
    np.testing.assert_allclose(layer(x), want, rtol=1e-4, atol=1e-5)
    compiled = tf.function(layer, input_signature=[tf.TensorSpec([None, F, D])])
    np.testing.assert_allclose(compiled(x), want, rtol=1e-4, atol=1e-5)
    assert layer(x[:0]).shape == (0, want.shape[1])
    assert layer.compute_output_shape((None, F, D)) == (None, want.shape[1])


@pytest.mark.parametrize(
    ("ratio", "fields", "outputs"),
    [(1 / 2, None, 8), (1 / 4, None, 4), (1 / 16, None, 1), (1, None, 15), (1 / 16, [2], 1)],
)
def test_the_ratio_is_the_share_of_the_numbers_that_leave(ratio, fields, outputs):
    assert research.TowerModule(ratio, fields)(vectors()).shape == (B, outputs)


@every_module
def test_gradients_are_those_of_finite_differences(name):
    layer, x = made(name), vectors(rows=2)
    rng = np.random.default_rng(3)
    variables = layer.trainable_variables
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = tf.reduce_sum(layer(given) ** 2)
    of_x, *of_weights = tape.gradient(y, [given, *variables])
    steps = [rng.normal(size=v.shape) for v in (x, *variables)]
    gradients = [np.asarray(g, np.float64) for g in (of_x, *of_weights)]
    slope = sum((g * s).sum() for g, s in zip(gradients, steps, strict=True))

    start, values = layer.get_weights(), []
    by_path = [np.asarray(v, np.float64) for v in variables]
    for sign in (1, -1):
        for variable, value, step in zip(variables, by_path, steps[1:], strict=True):
            variable.assign(value + sign * 1e-3 * step)
        values.append((numpy_tower(layer, x + sign * 1e-3 * steps[0]) ** 2).sum())
    layer.set_weights(start)
    np.testing.assert_allclose(slope, (values[0] - values[1]) / 2e-3, rtol=2e-3)


def test_other_fields_neither_change_a_tower_nor_have_a_gradient():
    layer, x = made("some fields"), tf.constant(vectors())
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(layer(x))
    gradient = tape.gradient(y, x).numpy()
    others = [f for f in range(F) if f not in FIELDS]
    assert not gradient[:, others].any()
    assert gradient[:, FIELDS].all()
    changed = x.numpy()
    changed[:, others] = 7
    np.testing.assert_array_equal(layer(tf.constant(changed)), layer(x))


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("form", ["keras", "checkpoint"])
def test_a_model_of_towers_trains_and_comes_back_from_files(tmp_path, form, run_eagerly):
    def model():
        inputs = tf.keras.Input((F,), dtype="int64")
        found = layers.FieldEmbedding([9] * F, 4)(inputs)
        towers = [
            research.TowerModule(0.5, fields, name=f"tower_{i}", rank=rank)
            for i, (fields, rank) in enumerate((((0, 3), None), ((1, 2, 4), 3)))
        ]
        joined = tf.keras.layers.Concatenate()([tower(found) for tower in towers])
        built = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(joined))
        built.compile(
            optimizers.LazyAdam(0.03),
            "binary_crossentropy",
            run_eagerly=run_eagerly,
            jit_compile=False,
        )
        return built

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 8, (64, F))
    labels = ((ids[:, 0] < 4) == (ids[:, 3] < 4)).astype(np.float32)[:, None]  # a pair of a tower
    trained = model()
    losses = trained.fit(ids, labels, batch_size=16, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    if form == "keras":
        trained.save(tmp_path / "m.keras")
        again = tf.keras.models.load_model(tmp_path / "m.keras")
    else:
        path = tf.train.Checkpoint(model=trained).save(str(tmp_path / "c"))
        again = model()
        again.fit(ids, labels, epochs=1, verbose=0)
        tf.train.Checkpoint(model=again).restore(path).assert_existing_objects_matched()
    for got, want in zip(again.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(again(ids), trained(ids), rtol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_mixed_precision_and_xla(jit_compile):
    exact = made("low rank")
    mixed = research.TowerModule(**MODULES["low rank"], dtype="mixed_bfloat16")
    mixed(vectors())
    mixed.set_weights(exact.get_weights())
    assert {str(w.dtype) for w in mixed.get_weights()} == {"float32"}
    got = tf.function(mixed, jit_compile=jit_compile)(tf.constant(vectors()))
    assert got.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(got, tf.float32), exact(vectors()), rtol=0.2, atol=0.2)


def test_matrices_of_a_tower_start_differently():
    layer = research.TowerModule(1.0, num_crosses=2, kernel_initializer="glorot_normal")
    layer(vectors())
    first, second, last = (w for w in layer.get_weights() if w.ndim == 2)
    assert len({w.tobytes() for w in (first, second, last)}) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: research.TowerModule(0), "ratio must be above 0 and at most 1, got 0"),
        (lambda: research.TowerModule(1.5), "ratio must be above 0 and at most 1, got 1.5"),
        (
            lambda: research.TowerModule(fields=[]),
            r"fields must be different positions, .*got \[\]",
        ),
        (lambda: research.TowerModule(fields=[1, 1]), r"fields must be different.* got \[1, 1\]"),
        (lambda: research.TowerModule(fields=[-1]), r"fields must be different.* got \[-1\]"),
        (
            lambda: research.TowerModule(num_crosses=-1),
            r"num_crosses \+ 1 must be a positive integer, got 0",
        ),
        (lambda: research.TowerModule(rank=0), "rank must be a positive integer or None, got 0"),
        (lambda: research.TowerModule()(vectors()[0]), r"inputs must be \[B, F, D\] with known F"),
        (
            lambda: research.TowerModule(fields=[5])(vectors()),
            r"inputs must have the fields \[5\] of the tower, got 5 fields",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
