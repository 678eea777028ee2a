"""GroupedSparseLinear: a SparseLinear without bias for each feature, in one op call."""

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.conftest import FORMS, in_form
from twml_ops import layers, optimizers

pytestmark = pytest.mark.usefixtures("fresh_keras")

TABLES = {
    "user": layers.SparseTable(20, 4),
    "ad": layers.SparseTable(12, 7, "he_normal"),
    "site": layers.SparseTable(9, 1, dtype="bfloat16"),
}
FEATURES = {"user": "user", "shown": "ad", "clicked": "ad", "site": "site"}


def batch(form, seed=0, rows=6):
    rng = np.random.default_rng(seed)
    inputs = {}
    for feature, table in FEATURES.items():
        n = TABLES[table].input_dim
        ids = np.sort(np.stack([rng.choice(n, 3, replace=False) for _ in range(rows)]), axis=1)
        values = rng.normal(size=ids.shape).astype(np.float32)
        ids[0], values[0] = -1, 0
        inputs[feature] = in_form(form, ids, values, n)
    return inputs


def layer_of(**arguments):
    return layers.GroupedSparseLinear(TABLES, FEATURES, **arguments)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "tf.function"])
@pytest.mark.parametrize("form", FORMS)
def test_each_feature_is_a_sparse_linear_layer(form, wrap):
    layer, inputs = layer_of(), batch(form)
    outputs = wrap(layer)(inputs)
    assert list(outputs) == list(FEATURES)
    for feature, name in FEATURES.items():
        table = TABLES[name]
        single = layers.SparseLinear(
            table.units, table.input_dim, use_bias=False, kernel_dtype=table.dtype
        )
        single.build(None)
        single.kernel.assign(layer.kernels[name])
        np.testing.assert_array_equal(outputs[feature], single(inputs[feature]))


def test_all_forms_give_the_same():
    layer = layer_of()
    want = layer(batch("sparse"))
    for form in FORMS[1:]:
        for feature, got in layer(batch(form)).items():
            np.testing.assert_array_equal(got, want[feature])


def test_without_features_each_table_has_one_of_its_name():
    layer = layers.GroupedSparseLinear({"a": layers.SparseTable(3, 2)})
    assert layer({"a": tf.constant([[0, 2]])})["a"].shape == (1, 2)


def test_config_round_trip_and_weights():
    layer = layer_of(name="tables")
    layer(batch("padded"))
    config = layer.get_config()
    again = layers.GroupedSparseLinear.from_config(config)
    assert again.get_config() == config
    again(batch("padded"))
    again.set_weights(layer.get_weights())
    for got, want in zip(
        again(batch("padded")).values(), layer(batch("padded")).values(), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def model_of():
    inputs = {f: tf.keras.Input([3], dtype="int64", name=f) for f in FEATURES}
    x = tf.keras.layers.Concatenate()([*layer_of()(inputs).values()])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, "sigmoid")(x))
    model.compile(optimizers.Adagrad(0.1), "binary_crossentropy")
    return model


def ids_only(seed=0):
    rng = np.random.default_rng(seed)
    x = {f: rng.integers(0, TABLES[t].input_dim, (64, 3)) for f, t in FEATURES.items()}
    return x, rng.integers(0, 2, (64, 1)).astype(np.float32)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_model_fits(run_eagerly):
    model = model_of()
    model.compile(optimizers.Adagrad(0.5), "binary_crossentropy", run_eagerly=run_eagerly)
    losses = model.fit(*ids_only(), batch_size=16, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_saved_models_give_the_same(tmp_path):
    model, (x, y) = model_of(), ids_only()
    model.fit(x, y, verbose=0)
    want = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), want, rtol=1e-6)
    prefix = tf.train.Checkpoint(model).save(str(tmp_path / "ckpt"))
    other = model_of()
    tf.train.Checkpoint(other).restore(prefix).expect_partial()
    np.testing.assert_allclose(other.predict(x, verbose=0), want, rtol=1e-6)
    for loaded in (again, other):
        for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(np.float32(a), np.float32(b))


def test_mixed_precision_keeps_tables_and_sums_in_float32():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    layer = layer_of()
    outputs = layer(batch("padded"))
    assert {o.dtype for o in outputs.values()} == {tf.bfloat16}
    assert {str(k.dtype) for k in layer.kernels.values()} >= {"float32"} or all(
        tf.as_dtype(k.dtype) in (tf.float32, tf.bfloat16) for k in layer.kernels.values()
    )


def test_bad_arguments_are_refused():
    table = layers.SparseTable(3, 2)
    with pytest.raises(ValueError, match="at least one table"):
        layers.GroupedSparseLinear({})
    with pytest.raises(ValueError, match=r"must name tables of \['a'\], got \['b'\]"):
        layers.GroupedSparseLinear({"a": table}, {"x": "b", "y": "a"})
    with pytest.raises(ValueError, match=r"got none for \['b'\]"):
        layers.GroupedSparseLinear({"a": table, "b": table}, {"x": "a"})
    with pytest.raises(ValueError, match="units must be a positive integer, got 0"):
        layers.SparseTable(3, 0)
    with pytest.raises(ValueError, match="dtype must be"):
        layers.SparseTable(3, 1, dtype="float16")


def test_bad_inputs_are_refused():
    layer = layers.GroupedSparseLinear({"a": layers.SparseTable(3, 2)})
    with pytest.raises(ValueError, match=r"inputs must be a dict of \['a'\], got \['b'\]"):
        layer({"b": tf.constant([[0]])})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 0: ids\[0\] = 3"):
        layer({"a": tf.constant([[3]])})
