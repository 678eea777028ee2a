"""Tables in `TPUEmbedding` and similar classes: lookups, and copies of tables both ways."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers, tpu
from twml_ops._keras import KERAS_3

N, D, B = 40, 3, 5
EMBEDDING = tf.tpu.experimental.embedding
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


def model(optimizer=None):
    """Two tables on one ragged batch, normalized."""
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    x = layers.MaxNorm(N, use_bias=False, name="norm")(inputs)
    deep = layers.SparseLinear(D, N, "relu", bias_initializer="ones", name="deep")(x)
    wide = layers.SparseLinear(1, N, name="wide")(x)
    y = tf.keras.layers.Concatenate()([deep, wide])
    made = tf.keras.Model(inputs, tf.keras.layers.Dense(1, "sigmoid", name="head")(y))
    made.compile(optimizer or optimizers.Adagrad(0.1), "binary_crossentropy", jit_compile=False)
    return made


def batch(seed=0):
    """A ragged batch with an empty example, a repeated id and values of both signs."""
    rng = np.random.default_rng(seed)
    lengths = [4, 0, 1, 7, 3]
    ids = rng.integers(0, N, sum(lengths))
    ids[1] = ids[0]
    values = rng.normal(size=len(ids)).astype(np.float32)
    return tuple(tf.RaggedTensor.from_row_lengths(x, lengths) for x in (ids, values))


def padded(pair):
    return tuple(x.to_tensor(d, shape=[B, 9]) for x, d in zip(pair, (-1, 0.0), strict=True))


def sparse(pair):
    rows = pair[0].value_rowids()
    indices = tf.stack([rows, pair[0].values], axis=1)
    return tf.SparseTensor(indices, pair[1].values, [B, N])


def products(made, pair):
    """Layer -> its product, without bias and activation function."""
    found = {}
    for name in ("deep", "wide"):
        layer = made.get_layer(name)
        plain = layers.SparseLinear(layer.units, N, use_bias=False)
        plain.build()
        plain.kernel.assign(layer.kernel)
        found[name] = plain(pair)
    return found


def apis():
    def tfrs(configs):
        from tensorflow_recommenders.layers.embedding import TPUEmbedding

        return TPUEmbedding(configs, EMBEDDING.SGD(0.1))

    has_tfrs = not KERAS_3 and importlib.util.find_spec("tensorflow_recommenders") is not None
    skip = pytest.mark.skipif(not has_tfrs, reason="tensorflow-recommenders needs Keras 2")
    return [
        pytest.param(tpu.create_embedding, id="serving"),
        pytest.param(lambda c: EMBEDDING.TPUEmbedding(dict(c), None), id="V1 on CPU"),
        pytest.param(tfrs, id="tfrs", marks=skip),
    ]


def lookup(embedding, inputs, configs):
    if isinstance(embedding, tf.keras.layers.Layer):  # of TensorFlow Recommenders
        return embedding(*inputs)
    return tpu.host_lookup(embedding, inputs, configs)


@pytest.mark.parametrize("make", apis())
@pytest.mark.parametrize("form", [lambda x: x, padded, sparse], ids=["ragged", "padded", "sparse"])
def test_lookups_equal_the_layers_products(make, form):
    made = model()
    configs = tpu.feature_configs(made)
    embedding = make(configs)
    pair = batch()
    inputs = tpu.lookup_inputs(made, dict.fromkeys(configs, form(pair)))
    got = lookup(embedding, inputs, configs)
    for name, want in products(made, pair).items():
        np.testing.assert_allclose(got[name], want, **TOLERANCE)


def test_lookups_of_binary_batches():
    made = model()
    configs = tpu.feature_configs(made)
    ids = batch()[0]
    inputs = tpu.lookup_inputs(made, dict.fromkeys(configs, ids))
    got = tpu.host_lookup(tpu.create_embedding(configs), inputs, configs)
    for name, want in products(made, ids).items():
        np.testing.assert_allclose(got[name], want, **TOLERANCE)


def test_a_model_uses_looked_up_products():
    made = model()
    configs = tpu.feature_configs(made)
    embedding = tpu.create_embedding(configs)
    pair = batch()
    normalized = made.get_layer("norm")(pair)
    inputs = tpu.lookup_inputs(made, dict.fromkeys(configs, normalized))
    want = made(pair)
    with tpu.use_lookups(tpu.host_lookup(embedding, inputs, configs)):
        got = made(pair)
    np.testing.assert_allclose(got, want, **TOLERANCE)
    with tpu.use_lookups({name: tf.zeros([B, c.table.dim]) for name, c in configs.items()}):
        zero = made(pair)
    assert not np.allclose(zero, want)


def test_looked_up_products_get_gradients():
    made = model()
    configs = tpu.feature_configs(made)
    pair = batch()
    activations = products(made, pair)
    with tf.GradientTape() as tape:
        tape.watch(activations)
        with tpu.use_lookups(activations):
            loss = tf.reduce_sum(made(pair) ** 2)
    by_activation, by_kernel = tape.gradient(
        loss, [activations, tf_variable(made.get_layer("deep").kernel)]
    )
    assert by_kernel is None
    assert float(tf.reduce_sum(tf.abs(by_activation["deep"]))) > 0
    assert set(by_activation) == set(configs)


def tf_variable(variable):
    return getattr(variable, "_value", variable)


def test_a_model_without_tables():
    with_tables = model()
    with tpu.external_tables():
        without = model()
    assert tuple(without.get_layer("deep").kernel.shape) == (0, D)
    configs = tpu.feature_configs(with_tables)
    for name in ("norm", "head"):
        without.get_layer(name).set_weights(with_tables.get_layer(name).get_weights())
    for name in configs:
        tf_variable(without.get_layer(name).bias).assign(
            tf.convert_to_tensor(with_tables.get_layer(name).bias)
        )
    pair = batch()
    normalized = with_tables.get_layer("norm")(pair)
    with tpu.use_lookups(products(with_tables, normalized)):
        np.testing.assert_allclose(without(pair), with_tables(pair), **TOLERANCE)
    with pytest.raises(Exception, match=r"no copy of the table of layer 'deep'"):
        without(pair)


def test_tables_are_copied_both_ways():
    made, other = model(), model()
    embedding = tpu.create_embedding(tpu.feature_configs(other))
    tpu.copy_tables_to_embedding(made, embedding)
    tpu.copy_tables_from_embedding(other, embedding)
    for name in ("deep", "wide"):
        ours, theirs = (np.asarray(m.get_layer(name).kernel) for m in (made, other))
        np.testing.assert_array_equal(ours, theirs)


def test_max_norm_updates_its_state_on_the_host():
    host, layer = (layers.MaxNorm(N, use_bias=False) for _ in range(2))
    host.build()
    batches = [batch(seed) for seed in range(3)]
    dataset = tf.data.Dataset.from_generator(
        lambda: ((b, tf.zeros([B, 1])) for b in batches),
        output_signature=(
            tuple(tf.RaggedTensorSpec([None, None], t) for t in (tf.int64, tf.float32)),
            tf.TensorSpec([None, 1]),
        ),
    )
    passed = tpu.map_on_host(dataset, host)
    for (features, _), pair in zip(passed, batches, strict=True):
        want = layer(pair, training=True)
        np.testing.assert_array_equal(features[1].values, want[1].values)
    np.testing.assert_array_equal(host.max_abs, layer.max_abs)


def test_a_trainable_bias_on_the_host_is_rejected():
    layer = layers.MaxNorm(N)
    layer.build()
    with pytest.raises(ValueError, match="use_bias=False"):
        tpu.map_on_host(tf.data.Dataset.from_tensors(batch()), layer)


@pytest.mark.parametrize(
    "options", [{"num_partitions": 2}, {"kernel_dtype": "bfloat16"}, {"placement": "sharded"}]
)
def test_tables_that_a_tpu_does_not_support_are_rejected(options):
    inputs = tf.keras.Input([4], dtype="int64")
    made = tf.keras.Model(inputs, layers.SparseLinear(D, N, name="t", **options)(inputs))
    with pytest.raises(ValueError, match=f"{next(iter(options))} of layer 't' must be"):
        tpu.feature_configs(made, optimizers.SGD(0.1))
