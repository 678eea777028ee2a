"""The dropout of the vectors of fields, and the minimum count, in the models that have them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.test_field_models import SMALL, data_of, features_of
from tests.pairwise import on_both
from twml_ops import models
from twml_ops.data import Schema
from twml_ops.optimizers import SGD

MODELS = ("dcn", "deepfm", "mmoe", "shared_bottom")
SCHEMA = Schema((), ("c", "d"), 0, "x")
RATE = 0.4
every_model = pytest.mark.parametrize("name", MODELS)
pytestmark = pytest.mark.usefixtures("fresh_keras")


def build(name, rate=RATE, seed=0, **options):
    tf.keras.utils.set_random_seed(seed)
    own = {**SMALL[name], "dropout": 0.0, "embedding_dropout": rate, **options}
    if name == "dcn":
        own.update(trees=False, statistics=False, crosses=())
    return models.get(name)(SCHEMA, data_of(SCHEMA, name=name), **own)


def vectors_of(model):
    """A model with the flat vectors before and after their dropout as outputs."""
    layer = model.get_layer("embedding_dropout")
    return tf.keras.Model(model.inputs, [layer.input, layer.output])


def features(name, rows=64):
    return features_of(SCHEMA, rows, name=name)


@pytest.mark.one_tf
@every_model
def test_a_share_of_the_components_is_dropped_and_the_others_are_scaled(name):
    before, after = (x.numpy() for x in vectors_of(build(name))(features(name), training=True))
    dropped = (after == 0) & (before != 0)
    assert abs(dropped.mean() - RATE) < 0.1
    np.testing.assert_allclose(after[~dropped], before[~dropped] / (1 - RATE), rtol=1e-5)


@pytest.mark.one_tf
@every_model
def test_the_expectation_is_that_of_all_components(name):
    number = 2000
    one = {k: tf.repeat(v[:1], number, axis=0) for k, v in features(name).items()}
    before, after = (x.numpy() for x in vectors_of(build(name))(one, training=True))
    # The standard deviation of the mean of a component, from which none should be 6 times as far.
    deviation = np.abs(before[0]) * np.sqrt(RATE / (1 - RATE) / number)
    assert (np.abs(after.mean(axis=0) - before[0]) <= 6 * deviation + 1e-7).all()


@pytest.mark.one_tf
@every_model
def test_inference_drops_nothing(name):
    model, given = build(name), features(name)
    before, after = vectors_of(model)(given, training=False)
    np.testing.assert_array_equal(before, after)
    first, second = model(given), model(given)
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


@pytest.mark.one_tf
@every_model
def test_without_dropout_training_and_inference_agree(name):
    model, given = build(name, rate=0.0), features(name)
    trained, served = model(given, training=True), model(given, training=False)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), trained, served
    )


def fitted(name, rate, run_eagerly, seed=0):
    model = build(name, rate, seed)
    model.compile(SGD(0.5), "binary_crossentropy", run_eagerly=run_eagerly, jit_compile=False)
    model.fit(data_of(SCHEMA, name=name), epochs=2, verbose=0)
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


@pytest.mark.one_tf
@pytest.mark.parametrize("run_eagerly", on_both([False, True], False))
def test_training_is_determined_by_the_seed(run_eagerly):
    first, again = (fitted("deepfm", RATE, run_eagerly) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    for other in (fitted("deepfm", 0.0, run_eagerly), fitted("deepfm", RATE, run_eagerly, seed=1)):
        assert not np.array_equal(first, other)


@every_model
def test_a_loaded_model_has_the_same_dropout(name, tmp_path):
    model, given = build(name), features(name)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert loaded.get_layer("embedding_dropout").rate == RATE
    np.testing.assert_allclose(loaded(given), model(given), rtol=1e-6)
    before, after = (x.numpy() for x in vectors_of(loaded)(given, training=True))
    assert ((after == 0) & (before != 0)).any()


@pytest.mark.one_tf
@every_model
@pytest.mark.parametrize("min_count", [1, 3])
def test_categories_below_the_minimum_count_share_a_row(name, min_count):
    ids = np.repeat(np.arange(1, 6), np.arange(1, 6))[:, None]  # category n occurs n times
    given = {"categorical": np.concatenate([ids, ids + 50], axis=1)}
    if name == "dcn":
        given["row_keys"] = np.arange(len(ids))
    data = tf.data.Dataset.from_tensor_slices((given, np.ones((len(ids), 1), np.float32))).batch(4)
    tf.keras.utils.set_random_seed(0)
    own = {**SMALL[name], "min_count": min_count}
    if name == "dcn":
        own.update(trees=False, statistics=False, crosses=())
    model = models.get(name)(SCHEMA, data, **own)
    ask = np.arange(1, 8)[:, None]
    asked = {"categorical": tf.constant(np.concatenate([ask, ask + 50], axis=1))}
    if name == "dcn":
        asked["row_keys"] = tf.range(7, dtype=tf.int64)
    vectors = vectors_of(model)(asked, training=False)[0].numpy()
    unseen = vectors[-1]
    shares = [np.array_equal(v, unseen) for v in vectors]
    assert shares == [n < min_count for n in range(1, 6)] + [True, True]
