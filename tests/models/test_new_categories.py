"""Rows for new categories: everything that a model knew stays, and its outputs as well."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops import layers, models
from twml_ops.data import Schema
from twml_ops.models.new_categories import enlarged_tables, with_new_categories

pytestmark = pytest.mark.usefixtures("fresh_keras")

SCHEMA = Schema(("n",), ("a", "tags", "b"), 0, "clicked", bags=("tags",))
KNOWN, NEW = {"a": 10, "b": 5, "tags": 7}, {"a": 14, "b": 5, "tags": 9}


def batches(categories, seed=1, rows=400):
    """Batches in which each category occurs often."""
    rng = np.random.default_rng(seed)
    features = {
        "continuous": rng.normal(size=(rows, 1)).astype(np.float32),
        "continuous_present": rng.random((rows, 1)) < 0.9,
        "categorical": np.stack(
            [rng.integers(-1, categories["a"], rows), rng.integers(-1, categories["b"], rows)], 1
        ),
        "bag_tags_ids": tf.RaggedTensor.from_row_lengths(
            rng.integers(0, categories["tags"], 2 * rows), [2] * rows
        ),
        "row_keys": np.arange(rows),
    }
    labels = (rng.random((rows, 1)) < 0.5).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(80)


def made(build, **options):
    tf.keras.utils.set_random_seed(1)
    return build(SCHEMA, batches(KNOWN), **options)


BUILDERS = [models.deepfm, models.logistic, models.dlrm, models.fm, models.dcn]


@pytest.mark.one_tf
@pytest.mark.parametrize(
    "build", on_both(BUILDERS, models.dcn, models.logistic), ids=lambda b: b.__name__
)
def test_the_outputs_do_not_change_and_new_categories_have_rows(build):
    model = made(build)
    found = with_new_categories(model, SCHEMA, batches(NEW, seed=2))
    assert found.new_rows == [4, 0, 2]
    names = {t.name.split(":")[0] for t in model.inputs}
    for features, _ in batches(NEW, seed=3):
        used = {k: v for k, v in features.items() if k in names}
        np.testing.assert_array_equal(model(used), found.model(used))
    before, after = (m.get_layer("categories") for m in (model, found.model))
    assert np.subtract(after.num_rows, before.num_rows).tolist() == [4, 0, 2]


@pytest.mark.one_tf
def test_known_rows_stay_and_new_ones_begin_with_the_shared_one():
    model = made(models.deepfm)
    embedding = model.get_layer("embedding")
    values = np.random.default_rng(1).normal(size=embedding.embeddings.shape)
    embedding.embeddings.assign(values.astype(np.float32))
    found = with_new_categories(model, SCHEMA, batches(NEW, seed=2))
    wide = np.array(found.model.get_layer("embedding").embeddings)
    (table, *_) = enlarged_tables(model, found.model)
    np.testing.assert_array_equal(wide[table.rows], values.astype(np.float32))
    added = np.setdiff1d(np.arange(len(wide)), table.rows)
    assert len(added) == 6
    shared_of_a, shared_of_tags = values[1], values[-(7 + 2) + 1]
    np.testing.assert_array_equal(wide[added[:4]], np.repeat([shared_of_a], 4, 0).astype("f"))
    np.testing.assert_array_equal(wide[added[4:]], np.repeat([shared_of_tags], 2, 0).astype("f"))


@pytest.mark.one_tf
def test_the_new_rows_are_trained_apart():
    model = made(models.logistic)
    found = with_new_categories(model, SCHEMA, batches(NEW, seed=2))
    found.model.compile("sgd", "binary_crossentropy")
    before = np.array(found.model.get_layer("linear").embeddings)
    found.model.fit(batches(NEW, seed=2), epochs=1, verbose=0)
    after = np.array(found.model.get_layer("linear").embeddings)
    (table,) = enlarged_tables(model, found.model)
    added = np.setdiff1d(np.arange(len(after)), table.rows)
    assert (before[added] == 0).all()
    assert (after[added] != 0).all()


@pytest.mark.one_tf
def test_without_news_the_model_is_the_same_one():
    model = made(models.fm)
    assert with_new_categories(model, SCHEMA, batches(KNOWN, seed=5)).model is model
    assert with_new_categories(model, SCHEMA, batches(KNOWN, seed=5)).new_rows == [0, 0, 0]
    numbers = Schema(("n",), (), 0, "clicked")
    model = models.logistic(numbers, batches(KNOWN))
    assert with_new_categories(model, numbers, batches(NEW)) == (model, [])


def test_the_enlarged_model_is_saved_and_enlarged_again(tmp_path):
    first = with_new_categories(made(models.deepfm), SCHEMA, batches(NEW, seed=2)).model
    first.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras", compile=False)
    second = with_new_categories(loaded, SCHEMA, batches({"a": 20, "b": 6, "tags": 9}, seed=3))
    assert second.new_rows == [6, 1, 0]
    for features, _ in batches(NEW, seed=4):
        used = {k: v for k, v in features.items() if k != "row_keys"}
        np.testing.assert_allclose(first(used), second.model(used), rtol=1e-6)


@pytest.mark.one_tf
def test_an_embedding_of_other_rows_is_named():
    ids = tf.keras.Input((2,), dtype="int64", name="categorical")
    rows = layers.CategoryRows(2, min_count=1)
    rows.adapt([np.array([[1, 2], [3, 4]])])
    vectors = layers.FieldEmbedding([9, 9], 2, name="mine")(rows(ids))
    model = tf.keras.Model({"categorical": ids}, vectors)
    schema = Schema((), ("a", "b"), 0, "clicked")
    with pytest.raises(ValueError, match="the layer 'mine' must take the rows of 'category_rows"):
        with_new_categories(model, schema, batches(NEW))
