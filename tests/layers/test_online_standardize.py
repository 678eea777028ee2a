import numpy as np
import pytest
import tensorflow as tf

from twml_ops.layers import MaxNorm, OnlineStandardize, SparseLinear

WIDTH = 4
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, WIDTH, [300, 3])
VALUES = (RNG.normal(size=IDS.shape) * (1 + IDS) + 5 * IDS).astype("f")


def ragged(rows=slice(None)):
    ids, values = IDS[rows], VALUES[rows]
    lengths = np.full(len(ids), 3)
    return (
        tf.RaggedTensor.from_row_lengths(ids.ravel(), lengths),
        tf.RaggedTensor.from_row_lengths(values.ravel(), lengths),
    )


def batch(ids, values):
    return np.array(ids), np.array(values, np.float32)


def trained(layer, rows=slice(None)):
    for part in np.array_split(np.arange(len(IDS))[rows], 5):
        layer((IDS[part], VALUES[part]), training=True)
    return layer


def test_what_was_seen_comes_out_with_mean_zero_and_deviation_one():
    layer = trained(OnlineStandardize(WIDTH, use_bias=False))
    _, y = layer((IDS, VALUES))
    for i in range(WIDTH):
        np.testing.assert_allclose(np.mean(y[i == IDS]), 0, atol=1e-5)
        np.testing.assert_allclose(np.std(y[i == IDS]), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", [OnlineStandardize, MaxNorm])
def test_layers_that_saw_parts_merge_to_one_that_saw_all(kind):
    whole, merged = trained(kind(WIDTH)), trained(kind(WIDTH), slice(0, 100))
    merged.merge(trained(kind(WIDTH), slice(100, 101)), trained(kind(WIDTH), slice(101, None)))
    for a, b in zip(merged.non_trainable_variables, whole.non_trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    for other in (kind(WIDTH), trained(kind(WIDTH + 1))):
        with pytest.raises(ValueError, match="others must be built and have input_dim 4"):
            merged.merge(other)


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("kind", [OnlineStandardize, MaxNorm])
def test_the_states_after_parts_of_a_batch_join_to_the_state_after_the_batch(kind, decay):
    """Features are in one part, in several, before the batch only, for the first time, or never."""
    layer = kind(7, decay=decay, use_bias=False)
    layer(batch([[0, 1], [2, 4], [1, 0]], [[1, 9], [7, -3], [2, 8]]), training=True)
    before = tf.convert_to_tensor(layer.state)

    def state_after(ids, values):
        layer.state.assign(before)
        layer(batch(ids, values), training=True)
        return tf.convert_to_tensor(layer.state)

    parts = [
        ([[0, 1], [1, 1]], [[3, 1], [2, -5]]),
        ([[1, 2]], [[6, 10]]),
        ([[1, 5], [5, 3]], [[4, -2], [1, 0.5]]),
    ]
    want = state_after(*(np.concatenate(p) for p in zip(*parts, strict=True)))
    joined = layer.joined_state(before, [state_after(*p) for p in parts])
    np.testing.assert_allclose(joined, want, rtol=1e-12)


@pytest.mark.parametrize("kind", [OnlineStandardize, MaxNorm])
def test_decay_forgets_how_it_was(kind):
    layer = kind(1, decay=0.9, use_bias=False)
    ids = np.zeros([50, 1], np.int64)
    layer((ids, np.full([50, 1], 1000, "f")), training=True)
    y = None
    for _ in range(200):
        _, y = layer((ids, RNG.normal(size=[50, 1]).astype("f")), training=True)
    assert 0.5 < np.max(np.abs(y)) < 6
    assert np.std(y) > 0.2


def test_max_norm_decays_once_a_batch_that_has_the_feature():
    layer = MaxNorm(2, decay=0.5, use_bias=False)
    layer(batch([[0, 1]], [[8, 8]]), training=True)
    layer(batch([[0, 0], [0, 0]], [[1, -3], [2, 1]]), training=True)
    np.testing.assert_array_equal(layer.max_abs, [4, 8])
    layer(batch([[0]], [[7]]), training=True)
    np.testing.assert_array_equal(layer.max_abs, [7, 8])


def test_missing_values_give_the_bias():
    layer = OnlineStandardize(WIDTH, bias_initializer=tf.keras.initializers.Constant(0.5))
    _, y = layer(batch([[0, 0, 1]], [[1, np.nan, np.nan]]), training=True)
    np.testing.assert_array_equal(y, [[0.5, 0.5, 0.5]])
    np.testing.assert_array_equal(layer.moments[0], [1, 1, 0])
    np.testing.assert_array_equal(layer.moments[1], [0, 0, 0])


@pytest.mark.parametrize("freeze", [False, True])
def test_inference_and_frozen_layers_do_not_learn(freeze):
    layer = OnlineStandardize(WIDTH)
    layer.trainable = not freeze
    layer((IDS, VALUES), training=freeze)
    np.testing.assert_array_equal(layer.moments, np.zeros([WIDTH, 3]))


def model():
    inputs = [
        tf.keras.Input([None], dtype="int64", ragged=True),
        tf.keras.Input([None], ragged=True),
    ]
    hidden = OnlineStandardize(WIDTH)(inputs)
    return tf.keras.Model(inputs, SparseLinear(1, WIDTH)(hidden))


def test_a_model_learns_and_every_file_keeps_it(tmp_path):
    m = model()
    m.compile(tf.keras.optimizers.SGD(0.1), "mse")
    data = tf.data.Dataset.from_tensors((ragged(), np.ones([300, 1], "f"))).repeat(3)
    m.fit(data, verbose=0)
    moments = m.layers[-2].moments.numpy()
    assert moments[:, 0].sum() == 3 * IDS.size
    m.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.layers[-2].moments, moments)
    np.testing.assert_array_equal(loaded(ragged()), m(ragged()))
    path = tf.train.Checkpoint(model=m).save(str(tmp_path / "c"))
    other = model()
    tf.train.Checkpoint(model=other).restore(path).expect_partial()
    np.testing.assert_array_equal(other.layers[-2].moments, moments)
    module = tf.Module()
    module.model = m
    specs = [tf.type_spec_from_value(t) for t in ragged()]
    module.serve = tf.function(lambda ids, values: m([ids, values]), input_signature=specs)
    tf.saved_model.save(module, str(tmp_path / "s"))
    with tf.device("CPU:0"):  # with a GPU, TensorFlow would restore the variables there
        kept = tf.saved_model.load(str(tmp_path / "s"))
    np.testing.assert_array_equal(kept.serve(*ragged()), m(ragged()))


def test_config_makes_an_equal_layer():
    layer = OnlineStandardize(WIDTH, 0.5, 3, 0.9, False, "ones", "zero", name="z")
    assert OnlineStandardize.from_config(layer.get_config()).get_config() == layer.get_config()
    norm = MaxNorm(WIDTH, decay=0.5)
    assert MaxNorm.from_config(norm.get_config()).decay == 0.5


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"input_dim": 0}, "input_dim must be a positive integer, got 0"),
        ({"epsilon": 0.0}, "epsilon must be a positive normal number"),
        ({"clip": 0}, "clip must be positive, got 0"),
        ({"decay": 0}, r"decay must be in \(0, 1\], got 0"),
        ({"nonfinite": "ignore"}, "nonfinite must be one of"),
    ],
)
def test_arguments_out_of_range_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        OnlineStandardize(**{"input_dim": WIDTH, **kwargs})
    if "decay" in kwargs:
        with pytest.raises(ValueError, match=message):
            MaxNorm(WIDTH, **kwargs)
