"""Layers on padded batches compiled by XLA give the results of the op library."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both, pairwise
from twml_ops import layers, ops, research
from twml_ops.models import HashedIds
from twml_ops.ops.hash import hash_keys

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


def fields(rows=40):
    """Ids of three fields, some of them missing or unknown, and row keys."""
    rng = np.random.default_rng(3)
    ids = rng.integers(-1, 6, (rows, 3))
    return tf.constant(ids, tf.int64), tf.constant(rng.integers(-99, 99, rows), tf.int64)


def test_category_rows():
    layer = layers.CategoryRows(3, min_count=2)
    ids, _ = fields()
    layer.adapt([ids[:20]])
    assert len(np.unique(layer(ids))) > 4
    np.testing.assert_array_equal(compiled(layer)(ids), layer(ids))


def test_learned_hash():
    ids, _ = fields()
    rows = layers.CategoryRows(3, min_count=1)
    counts = rows.new_counts()
    rows.count(counts, ids[:20])
    rows.adapt_from_counts(counts)
    vectors = layers.FieldEmbedding(rows.num_rows, 2)
    vectors.build()
    layer = research.LearnedHash(3)
    layer.learn(counts, rows, vectors, [research.HashPlan(3, 2, 2, 3)] * 3)
    assert len(np.unique(layer(ids))) > 4
    np.testing.assert_array_equal(compiled(layer)(ids), layer(ids))


@pairwise(
    kind=[layers.TargetStatistics, layers.CountStatistics],
    options=[{}, {"time_boundaries": [-20, 30]}],
    training=[False, True],
)
def test_category_statistics(kind, options, training):
    layer = kind(3, crosses=[[0, 1], [0, 1, 2]], **options)
    ids, row_keys = fields()
    labels = np.random.default_rng(0).integers(0, 2, len(ids)).astype(np.float32)
    layer.adapt([((ids[:30], row_keys[:30]), labels[:30])])
    got = compiled(lambda i, k: layer((i, k), training=training))(ids, row_keys)
    want = layer((ids, row_keys), training=training)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_field_quantiles():
    layer = layers.FieldQuantiles(3, 5)
    rng = np.random.default_rng(1)
    x, present = rng.normal(size=(40, 3)).astype(np.float32), rng.random((40, 3)) < 0.8
    x[:, 2] = 1  # one distinct value
    layer.adapt([(x, present)])
    inputs = tf.constant(x), tf.constant(present)
    for got, want in zip(compiled(lambda *i: layer(i))(*inputs), layer(inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"pooling": "mean"}, {"projected_units": 2}], ids=str)
def test_field_embedding(options):
    layer = layers.FieldEmbedding([7, 3, 9], 4, out_of_range="wrap", **options)
    ids, _ = fields()
    np.testing.assert_allclose(compiled(layer)(ids), layer(ids), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_boosted_trees(training):
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    keys = np.arange(400)
    layer = layers.BoostedTrees(3, max_trees=4, min_examples=10)
    layer.adapt([([x, keys], (x[:, 0] > 0).astype(np.float32))])
    inputs = tf.constant(x), tf.constant(keys)
    got = compiled(lambda *i: layer([*i], training=training))(*inputs)
    np.testing.assert_allclose(got, layer([*inputs], training=training), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known", on_both([0, 1, 2, 3, 4, 5, 63, 64, 65], 0, 5, 64))
def test_find_keys(known):
    keys = np.arange(-1, 2 * known + 2)
    odd = np.arange(1, 2 * known, 2)
    limits = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    odd = np.concatenate([limits[:1], odd, limits[1:]]) if known > 3 else odd
    keys = tf.constant(np.concatenate([keys, limits]).reshape(1, -1))
    got = compiled(ops.find_keys)(tf.constant(odd, tf.int64), keys)
    np.testing.assert_array_equal(got, ops.find_keys(odd, keys))


def test_keys_are_no_padding():
    keys = tf.constant([-1, -7, 0, 5], tf.int64)
    got = compiled(lambda k: hash_keys(k, 30, 3))(keys)
    np.testing.assert_array_equal(got, ops.hash_ids(keys, 30, 3))
