"""`FrequentCategories` against counts one by one."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import export
from twml_ops.layers import CategoryFrequencies, FrequentCategories, _category_frequencies


def data(rows=300, seed=0):
    """Ids [rows, 2], of which many are rare and some are missing."""
    rng = np.random.default_rng(seed)
    ids = rng.zipf(1.4, (rows, 2)) % 90 * 10**16 + np.arange(2)
    return np.where(rng.random(ids.shape) < 0.1, -1, ids)


def adapted(**options):
    layer = FrequentCategories(2, **{"min_count": 4, "name": "categories", **options})
    ids = data()
    layer.adapt(ids[i : i + 70] for i in range(0, 300, 70))
    return layer


def numbers_of(column, min_count, limit=10**9):
    counts = sorted((-n, i) for i, n in Counter(column[column >= 0].tolist()).items())
    kept = sorted(i for n, i in counts[:limit] if -n >= min_count)
    return {i: 1 + k for k, i in enumerate(kept)}


@pytest.mark.parametrize(("min_count", "max_rows"), [(1, 1000), (4, 1000), (1, 7)])
def test_frequent_categories_are_numbered_and_others_share_0(min_count, max_rows):
    layer = adapted(min_count=min_count, max_rows=max_rows)
    probe = np.concatenate([data(), [[123, 2**62]]])
    known = [numbers_of(column, min_count, max_rows - 2) for column in data().T]
    want = [[-1 if i < 0 else known[f].get(i, 0) for f, i in enumerate(r)] for r in probe.tolist()]
    graph = tf.function(layer, input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    for call in (layer, graph):
        np.testing.assert_array_equal(call(tf.constant(probe)), want)
    assert layer.num_rows == [2 + len(k) for k in known]
    assert max(layer.num_rows) <= max_rows


def test_bags_are_numbered_alike():
    bag = tf.RaggedTensor.from_row_lengths(data()[:, 0], [3, 0, 297])
    layer = FrequentCategories(1, min_count=2)
    layer.adapt([bag])
    known = numbers_of(data()[:, 0], 2)
    got = layer(bag)
    np.testing.assert_array_equal(got.row_splits, bag.row_splits)
    want = [-1 if i < 0 else known.get(i, 0) for i in data()[:, 0].tolist()]
    np.testing.assert_array_equal(got.flat_values, want)


def test_the_division_of_rows_among_processes_cannot_be_seen(monkeypatch):
    monkeypatch.setattr(_category_frequencies, "_COMPACT_ENTRIES", 50)
    layer, parts = FrequentCategories(2, min_count=4), []
    for part in np.array_split(data(), 3):
        parts.append(layer.new_counts())
        for field, column in enumerate(part.T):
            parts[-1].update(field, column)
    for other in parts[1:]:
        parts[0].merge(other)
    layer.adapt_from_counts(parts[0])
    for mine, other in zip(layer.state_variables, adapted().state_variables, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_of_too_many_categories_the_rarer_half_is_forgotten(monkeypatch):
    monkeypatch.setattr(_category_frequencies, "_MAX_CATEGORIES", 10)
    counts = CategoryFrequencies(1)
    counts.update(0, np.repeat(np.arange(11), [9, 1, 1, 9, 1, 1, 9, 1, 1, 9, 1]))
    assert counts.frequent(0, 1, 100).tolist() == [0, 1, 3, 6, 9]


def test_a_model_comes_back_from_a_file_as_a_clone_and_from_a_stock_export(tmp_path):
    inputs = tf.keras.Input([2], dtype="int64", name="ids")
    layer = adapted()
    x = tf.keras.layers.Embedding(max(layer.num_rows), 3)(tf.keras.layers.ReLU()(layer(inputs)))
    model = tf.keras.Model(inputs, tf.keras.layers.Flatten()(x))
    batch = tf.constant(data(20, seed=3))
    path = str(tmp_path / "m.keras")
    model.save(path)
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for again in (tf.keras.models.load_model(path), clone):
        np.testing.assert_array_equal(again(batch), model(batch))
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(tmp_path / "stock").signatures["serving_default"]
    (got,) = served(ids=batch).values()
    np.testing.assert_allclose(got, model(batch), rtol=1e-6)


@pytest.mark.parametrize("options", [{"min_count": 0}, {"max_rows": 1}, {"num_fields": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        FrequentCategories(**{"num_fields": 2, **options})


def test_bad_calls_are_refused():
    with pytest.raises(ValueError, match="not adapted"):
        FrequentCategories(2)(tf.constant(data()))
    with pytest.raises(ValueError, match=r"\[B, 2\]"):
        adapted()(tf.constant(data()[:, :1]))
    with pytest.raises(ValueError, match=r"\[B, 2\]"):
        adapted()(tf.RaggedTensor.from_row_lengths(data()[:, 0], [300]))
    with pytest.raises(ValueError, match=r"\[B, 2\]"):
        FrequentCategories(2).adapt([data()[:, :1]])
