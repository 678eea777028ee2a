import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core
from twml_ops.layers import MDLDiscretizer


def entropy(labels):
    p = np.unique(labels, return_counts=True)[1] / max(1, len(labels))
    return -np.sum(p * np.log2(p))


def paper(values, labels):
    """Fayyad and Irani, word for word, on sorted examples: the values before the cuts."""
    order = np.argsort(values, kind="stable")
    values, labels = values[order], labels[order]
    n = len(values)
    cuts = [i for i in range(1, n) if values[i - 1] < values[i]]
    if n < 2 or not cuts:
        return []

    def left_over(i):
        return (i * entropy(labels[:i]) + (n - i) * entropy(labels[i:])) / n

    left = np.array([left_over(i) for i in cuts])
    i = cuts[int(np.flatnonzero(left <= left.min() + 1e-12)[0])]
    parts = [labels, labels[:i], labels[i:]]
    k, k1, k2 = (len(np.unique(part)) for part in parts)
    e, e1, e2 = (entropy(part) for part in parts)
    gain = e - left_over(i)
    delta = np.log2(3.0**k - 2) - (k * e - k1 * e1 - k2 * e2)
    if k < 2 or gain <= (np.log2(n - 1) + delta) / n:
        return []
    return [*paper(values[:i], labels[:i]), values[i - 1], *paper(values[i:], labels[i:])]


def fit(values, labels, classes=2, side="left"):
    layer = MDLDiscretizer(classes, side=side, unknown="error")
    ids = np.zeros([len(values), 1], np.int64)
    layer.adapt(tf.data.Dataset.from_tensors(((ids, np.float32(values)[:, None]), labels)))
    return layer


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(0, 3)), max_size=120),
    st.integers(2, 3),
)
def test_cuts_are_those_of_the_paper(examples, classes):
    """Labels follow the value in most examples, so that there is something to cut."""
    values = np.array([v for v, _, _ in examples], np.float32)
    labels = np.array([v // 4 if r else c for v, c, r in examples], np.int64) % classes
    sketches = [core.QuantileSketch() for _ in range(classes)]
    for c, sketch in enumerate(sketches):
        sketch.update(np.zeros(np.sum(labels == c), np.int64), values[labels == c])
    got, splits = core.mdl_boundaries(sketches, [0])
    np.testing.assert_array_equal(got, paper(values, labels))
    assert splits.tolist() == [0, len(got)]


def test_buckets_separate_what_the_labels_separate():
    rng = np.random.default_rng(0)
    values = rng.permutation(2000).astype("f")
    labels = ((values > 500) & (values <= 1500)).astype(np.int64)
    for side in ("left", "right"):
        layer = fit(values, labels, side=side)
        buckets, _ = layer((tf.zeros([2000, 1], tf.int64), tf.constant(values[:, None])))
        np.testing.assert_array_equal(
            np.ravel(buckets), np.searchsorted([500, 1500], values, "left")
        )


def test_much_data_is_cut_within_epsilon():
    rng = np.random.default_rng(1)
    values = rng.random(100_000).astype("f")
    labels = (rng.random(100_000) < np.where(values < 0.3, 0.1, 0.6)).astype(np.int64)
    cuts = fit(values, labels).state_variables[1].numpy()
    assert np.min(np.abs(cuts - 0.3)) < 0.01
    assert len(cuts) < 6


def test_noise_gets_one_bucket():
    rng = np.random.default_rng(2)
    layer = fit(rng.random(1000), rng.integers(0, 2, 1000))
    assert layer.output_dim == 2  # and one for NaN


def test_integer_weights_equal_repetitions():
    rng = np.random.default_rng(3)
    values, labels = rng.integers(0, 20, 300).astype("f"), rng.integers(0, 2, 300)
    labels = np.where(values < 7, labels & rng.integers(0, 2, 300), labels)
    weights = rng.integers(0, 9, 300)
    ids = np.zeros([300, 1], np.int64)
    weighted = MDLDiscretizer()
    data = tf.data.Dataset.from_tensors(((ids, values[:, None]), labels, weights))
    weighted.adapt(data, weighted=True)
    repeated = fit(np.repeat(values, weights), np.repeat(labels, weights))
    np.testing.assert_array_equal(weighted.state_variables[1], repeated.state_variables[1])


def test_a_keras_file_keeps_the_layer(tmp_path):
    values = np.arange(100, dtype=np.float32)
    layer = fit(values, (values > 30).astype(np.int64))
    inputs = [tf.keras.Input([None], dtype="int64"), tf.keras.Input([None])]
    model = tf.keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras").layers[-1]
    assert loaded.get_config() == layer.get_config()
    for a, b in zip(loaded.state_variables, layer.state_variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MDLDiscretizer(0), "num_classes must be a positive integer, got 0"),
        (lambda: fit([1.0, 2.0], np.array([0, 2])), r"labels must be integers in \[0, 1\], got 2"),
        (
            lambda: fit([1.0, 2.0], np.array([0, -1])),
            r"labels must be integers in \[0, 1\], got -1",
        ),
        (lambda: fit([1.0, 2.0], np.array([0])), "must have 2 items, one for each row, got 1"),
        (
            lambda: MDLDiscretizer().adapt_from_sketch(),
            "expected 2 sketches, one for each class, got 0",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
