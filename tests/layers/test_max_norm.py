import numpy as np
import pytest
import tensorflow as tf

from tests.layers.conftest import in_form, inputs_of
from twml_ops.layers import MaxNorm, SparseLinear

WIDTH = 6
IDS = np.array([[0, 1, 2], [5, 5, -1], [-1, -1, -1], [3, 0, 1]])
VALUES = np.array([[1, -2, 3], [4, 0.5, 0], [0, 0, 0], [-8, 2, 2]], np.float32)


def form(name, ids=IDS, values=VALUES):
    return in_form(name, ids, values, WIDTH)


def flat_values(outputs):
    if isinstance(outputs, tf.SparseTensor):
        return outputs.values
    ids, values = outputs
    return values.flat_values if isinstance(values, tf.RaggedTensor) else values[ids != -1]


FORMS = ["sparse", "ragged", "padded"]
FLAT = VALUES[IDS != -1]
MAX_ABS = np.array([2, 2, 3, 8, 0, 4], np.float32)
NORMALIZED = FLAT / MAX_ABS[IDS[IDS != -1]]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("in_function", [False, True])
def test_normalizes_every_form_and_returns_it(name, in_function):
    layer = MaxNorm(WIDTH, bias_initializer=tf.keras.initializers.Constant(0.25))
    layer.build()
    call = tf.function(layer) if in_function else layer
    outputs = call(form(name), training=True)
    tf.nest.assert_same_structure(outputs, form(name), expand_composites=True)
    np.testing.assert_allclose(flat_values(outputs), NORMALIZED + 0.25, rtol=1e-6)
    np.testing.assert_array_equal(layer.max_abs, MAX_ABS)


def test_numpy_arrays_are_accepted():
    layer = MaxNorm(WIDTH, use_bias=False)
    _, values = layer((IDS, VALUES), training=True)
    np.testing.assert_array_equal(values[IDS != -1], NORMALIZED)


def test_a_binary_batch_becomes_a_pair():
    ids, values = MaxNorm(WIDTH)(form("ragged")[0], training=True)
    np.testing.assert_array_equal(ids.flat_values, IDS[IDS != -1])
    np.testing.assert_array_equal(values.flat_values, np.ones(8))


@pytest.mark.parametrize("training", [None, False])
def test_inference_does_not_change_the_state(training):
    layer = MaxNorm(WIDTH)
    layer(form("padded"), training=training)
    np.testing.assert_array_equal(layer.max_abs, np.zeros(WIDTH))


def test_a_frozen_layer_does_not_change_its_state():
    layer = MaxNorm(WIDTH)
    layer.trainable = False
    layer(form("padded"), training=True)
    np.testing.assert_array_equal(layer.max_abs, np.zeros(WIDTH))


def test_inference_clips_to_what_training_saw():
    layer = MaxNorm(WIDTH, use_bias=False)
    layer(form("padded"), training=True)
    outputs = flat_values(layer(form("padded", values=100 * VALUES)))
    np.testing.assert_array_equal(outputs, np.sign(FLAT))


def test_only_the_bias_is_trainable_and_its_gradient_sparse():
    layer = MaxNorm(WIDTH)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(form("sparse"), training=True).values)
    assert len(layer.trainable_variables) == 1
    gradient = tape.gradient(total, layer.trainable_variables)[0]
    assert isinstance(gradient, tf.IndexedSlices)
    np.testing.assert_array_equal(gradient.indices, [0, 1, 2, 3, 5])
    np.testing.assert_array_equal(gradient.values, [2, 2, 1, 1, 2])


def model(name, **kwargs):
    inputs = inputs_of(name, WIDTH)
    hidden = MaxNorm(WIDTH, **kwargs)(inputs)
    return tf.keras.Model(inputs, SparseLinear(1, WIDTH, kernel_initializer="ones")(hidden))


def dataset(name):
    labels = np.array([[1], [0], [1], [0]], np.float32)
    return tf.data.Dataset.from_tensors((form(name), labels)).repeat(2)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fits_in_every_form_to_the_same_weights(name, run_eagerly):
    trained = {}
    for each in (name, "padded"):
        m = model(each)
        m.compile(tf.keras.optimizers.SGD(0.1), "mse", run_eagerly=run_eagerly)
        m.fit(dataset(each), verbose=0)
        trained[each] = m.get_weights()
        assert m.predict(dataset(each), verbose=0).shape == (8, 1)
    for a, b in zip(trained[name], trained["padded"], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(max(trained[name], key=np.sum), MAX_ABS)


@pytest.mark.parametrize("name", FORMS)
def test_a_keras_file_keeps_the_model(name, tmp_path):
    m = model(name, nonfinite="zero", epsilon=0.5)
    m(form(name), training=True)
    m.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(form(name)), m(form(name)))
    assert loaded.layers[-2].get_config() == m.layers[-2].get_config()


def test_a_checkpoint_keeps_the_layer(tmp_path):
    layer, other = MaxNorm(WIDTH), MaxNorm(WIDTH)
    layer(form("padded"), training=True)
    other.build()
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
    tf.train.Checkpoint(layer=other).restore(path).assert_consumed()
    np.testing.assert_array_equal(other.max_abs, MAX_ABS)


@pytest.mark.parametrize("name", ["ragged", "padded"])
def test_a_saved_model_keeps_the_model(name, tmp_path):
    m = model(name)
    m(form(name), training=True)
    module = tf.Module()
    module.model = m
    specs = [tf.type_spec_from_value(t) for t in form(name)]
    module.serve = tf.function(lambda ids, values: m([ids, values]), input_signature=specs)
    tf.saved_model.save(module, str(tmp_path))
    with tf.device("CPU:0"):  # with a GPU, TensorFlow would restore the variables there
        loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.serve(*form(name)), m(form(name)))


def test_config_makes_an_equal_layer():
    layer = MaxNorm(WIDTH, 0.5, False, "ones", "zero", name="norm")
    again = MaxNorm.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (again.input_dim, again.epsilon, again.use_bias, again.nonfinite) == (
        6,
        0.5,
        False,
        "zero",
    )


def test_mixed_precision_does_not_change_values():
    layer = MaxNorm(1, use_bias=False, dtype="mixed_float16")
    value = np.float32(1 + 2**-20)
    layer((np.array([[0]]), np.array([[2.0]], np.float32)), training=True)
    _, out = layer((tf.constant([[0]]), tf.constant([[value]])))
    assert out.dtype == tf.float32
    assert out.numpy()[0, 0] == value / 2


def test_runs_in_tf_data():
    layer = MaxNorm(WIDTH, use_bias=False)
    layer(form("sparse"), training=True)
    mapped = tf.data.Dataset.from_tensors(form("sparse")).map(layer)
    np.testing.assert_array_equal(next(iter(mapped)).values, NORMALIZED)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"input_dim": 0}, "input_dim must be a positive integer, got 0"),
        ({"input_dim": 2.5}, "input_dim must be a positive integer"),
        ({"epsilon": 0.0}, "epsilon must be a positive normal number, got 0"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"epsilon": 1e-42}, "epsilon must be"),
        ({"nonfinite": "ignore"}, "nonfinite must be one of"),
        ({"placement": "sharded"}, 'placement must be "auto", "host" or "device", got .sharded'),
    ],
)
def test_arguments_out_of_range_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MaxNorm(**{"input_dim": WIDTH, **kwargs})


def test_a_bad_batch_is_refused_and_changes_nothing():
    layer = MaxNorm(WIDTH)
    layer.build()
    with pytest.raises(ValueError, match=r"inputs must be a tf\.SparseTensor"):
        layer(tf.zeros([2, WIDTH]), training=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[0\] = 6 is out of range"):
        layer((tf.constant([[6]]), tf.constant([[1.0]])), training=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not finite"):
        layer((tf.constant([[0, 1]]), tf.constant([[1.0, np.nan]])), training=True)
    np.testing.assert_array_equal(layer.max_abs, np.zeros(WIDTH))
