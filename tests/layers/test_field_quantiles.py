"""`FieldQuantiles` against buckets and ranks one by one."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import export
from twml_ops.layers import FieldQuantiles


def data(rows=300, seed=0):
    """Numbers with outliers, of few values, and never present."""
    rng = np.random.default_rng(seed)
    numbers = np.stack([rng.lognormal(0, 3, rows), rng.integers(0, 3, rows), np.ones(rows)], axis=1)
    present = rng.random((rows, 3)) < [0.8, 0.9, 0]
    return numbers.astype(np.float32), present


def adapted(bins=8):
    layer = FieldQuantiles(3, bins, name="quantiles")
    numbers, present = data()
    layer.adapt([(numbers[i : i + 50], present[i : i + 50]) for i in range(0, 300, 50)])
    return layer


def one_by_one(bounds, value):
    bounds = bounds[np.isfinite(bounds)]
    bucket = int((bounds < value).sum())
    inner = 0 < bucket < len(bounds)
    t = (value - bounds[bucket - 1]) / (bounds[bucket] - bounds[bucket - 1]) if inner else 0.5
    return bucket, 2 * (bucket + t) / (len(bounds) + 1) - 1


def test_buckets_and_ranks_are_those_of_the_definition():
    layer = adapted()
    numbers, present = data(40, seed=1)
    numbers[:4, 0] = [np.inf, -np.inf, 0, 1e30]
    spec = [[tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3], tf.bool)]]
    for call in (layer, tf.function(layer, input_signature=spec)):
        buckets, ranks = call([tf.constant(numbers), tf.constant(present)])
        assert buckets.dtype == tf.int64
        for b, row in enumerate(numbers):
            for c, value in enumerate(row):
                want = one_by_one(layer.boundaries.numpy()[c], value) if present[b, c] else (-1, 0)
                found = int(buckets[b, c]), float(ranks[b, c])
                assert found == pytest.approx(want, abs=1e-5)


def test_buckets_have_about_the_same_size_and_few_values_have_a_bucket_each():
    layer = adapted()
    numbers, present = data()
    buckets, ranks = layer([tf.constant(numbers), tf.constant(present)])
    sizes = np.bincount(buckets.numpy()[present[:, 0], 0])
    assert len(sizes) == 8
    assert sizes.min() > 0.7 * sizes.mean()
    assert set(buckets.numpy()[present[:, 1], 1]) == {0, 1, 2}
    assert np.abs(ranks).max() <= 1


def test_ranks_ascend_with_the_values():
    x = np.sort(data()[0][:, :1], axis=0).repeat(3, axis=1)
    ranks = adapted()([tf.constant(x), tf.ones(x.shape, tf.bool)])[1].numpy()
    assert (np.diff(ranks[:, 0]) >= 0).all()


def test_a_model_comes_back_from_a_file_as_a_clone_and_from_a_stock_export(tmp_path):
    inputs = [tf.keras.Input([3], name="x"), tf.keras.Input([3], dtype="bool", name="there")]
    buckets, ranks = adapted()(inputs)
    buckets = tf.keras.layers.Embedding(9, 2)(tf.keras.layers.ReLU()(buckets))
    flat = tf.keras.layers.Flatten()(buckets)
    model = tf.keras.Model(inputs, tf.keras.layers.Concatenate()([flat, ranks]))
    batch = [tf.constant(a) for a in data(7, seed=2)]
    want = model(batch)
    path = str(tmp_path / "m.keras")
    model.save(path)
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for again in (tf.keras.models.load_model(path), clone):
        np.testing.assert_allclose(again(batch), want, rtol=1e-6)
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(tmp_path / "stock").signatures["serving_default"]
    (got,) = served(x=batch[0], there=batch[1]).values()
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("arguments", [(0,), (3, 1), (3, 2.5)])
def test_bad_options_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        FieldQuantiles(*arguments)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\[B, 3\]"):
        adapted()([tf.zeros([2, 4]), tf.ones([2, 4], tf.bool)])
    with pytest.raises(ValueError, match=r"\[B, 3\]"):
        FieldQuantiles(3).adapt([(np.zeros((2, 4)), np.ones((2, 4), bool))])
