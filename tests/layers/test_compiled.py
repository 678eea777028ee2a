"""Layers on padded batches compiled by XLA give the results of the op library."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, ops
from twml_ops.models import HashedIds

N, D, B, M = 20, 5, 6, 4


def batch():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, N, (B, M))
    ids[rng.random((B, M)) < 0.4] = -1  # padding, not only at the end
    ids[2] = -1
    ids[0, :2] = 7  # repeated in a row
    values = rng.normal(size=(B, M)).astype(np.float32)
    return tf.constant(ids, tf.int64), tf.constant(values)


def compiled(fn):
    @tf.function(jit_compile=True)
    def call(*inputs):
        with ops.xla_compatible():
            return fn(*inputs)

    return call


def adapted(layer):
    rng = np.random.default_rng(1)
    ids = np.tile(np.arange(N // 2), (50, 1))
    layer.adapt((ids, rng.normal(size=ids.shape).astype(np.float32)))
    return layer


def entries(pair):
    """The entries of each row of a padded batch, in order."""
    ids, values = (np.asarray(x) for x in pair)
    return [list(zip(i[i >= 0], v[i >= 0], strict=True)) for i, v in zip(ids, values, strict=True)]


def assert_same_entries(got, want):
    for g, w in zip(entries(got), entries(want), strict=True):
        assert [i for i, _ in g] == [i for i, _ in w]
        np.testing.assert_allclose([v for _, v in g], [v for _, v in w], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_partitions": 2}, {"num_partitions": 5, "partition_axis": "column"}],
    ids=["whole", "rows", "columns"],
)
def test_sparse_linear(options, binary):
    layer = layers.SparseLinear(D, N, "relu", **options)
    inputs = batch()[0] if binary else batch()
    want = layer(inputs)
    got = compiled(layer)(inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_sparse_linears_gradients():
    layer = layers.SparseLinear(D, N)
    ids, values = batch()
    layer((ids, values))
    kernel = getattr(layer.kernel, "_value", layer.kernel)

    def gradients(ids, values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(layer((ids, values)) ** 2)
        by_kernel, by_values = tape.gradient(loss, [kernel, values])
        return tf.convert_to_tensor(by_kernel), by_values

    for got, want in zip(compiled(gradients)(ids, values), gradients(ids, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_grouped_sparse_linear():
    layer = layers.GroupedSparseLinear(
        {"a": layers.SparseTable(N, 3), "b": layers.SparseTable(N, 2)}
    )
    inputs = {"a": batch(), "b": batch()[0]}
    want = layer(inputs)
    got = compiled(layer)(inputs)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_max_norm_in_training(decay):
    draw = tf.keras.initializers.RandomNormal(seed=1)
    one, other = (layers.MaxNorm(N, decay=decay, bias_initializer=draw) for _ in range(2))
    one.build()
    other.build()
    other.set_weights(one.get_weights())
    train = compiled(lambda i, v: other((i, v), training=True))
    ids, values = batch()
    for scale in (1.0, 0.5, 2.0):
        want = one((ids, scale * values), training=True)
        assert_same_entries(train(ids, scale * values), want)
        np.testing.assert_allclose(other.max_abs, one.max_abs, rtol=1e-6)
    assert_same_entries(compiled(other)((ids, values)), one((ids, values)))


def test_online_standardize_in_inference():
    layer = layers.OnlineStandardize(N)
    layer(batch(), training=True)
    assert_same_entries(compiled(layer)(batch()), layer(batch()))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.PercentileDiscretizer(4),
        lambda: layers.PercentileDiscretizer(4, missing="drop", unknown="drop"),
        lambda: layers.PercentileDiscretizer(4, keep_inputs=True),
        lambda: layers.HashingDiscretizer(10, num_bins=4, side="right"),
    ],
    ids=["percentile", "dropping", "keeping", "hashing"],
)
def test_discretizers(layer):
    layer = adapted(layer())
    ids, values = batch()
    values = tf.where(np.arange(M) == 3, np.nan, values)  # missing
    got = compiled(layer)((ids, values))
    assert_same_entries(got, layer((ids, values)))


def test_hashed_ids():
    layer = HashedIds(12)
    ids, _ = batch()
    np.testing.assert_array_equal(compiled(layer)(ids), layer(ids))


def test_a_whole_model():
    inputs = [tf.keras.Input((M,), dtype=t) for t in ("int64", "float32")]
    buckets = adapted(layers.PercentileDiscretizer(4))
    x = layers.MaxNorm(buckets.output_dim)(buckets(inputs))
    x = layers.SparseLinear(8, buckets.output_dim, "relu")(x)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, "sigmoid")(x))
    ids, values = batch()
    got = compiled(lambda i, v: model([i, v]))(ids, values)
    np.testing.assert_allclose(got, model([ids, values]), rtol=1e-5, atol=1e-6)


def test_a_batch_of_unknown_shape_is_refused():
    layer = layers.SparseLinear(D, N)
    call = tf.function(lambda i: layer(i), input_signature=[tf.TensorSpec([None, M], tf.int64)])
    with ops.xla_compatible(), pytest.raises(ValueError, match="must have a known shape"):
        call.get_concrete_function()
