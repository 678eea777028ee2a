"""`Tower`: the embedding and the module of one tower of fields as one layer."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export.test_scorer import scorer_of
from twml_ops import layers, optimizers, research

FIELDS, UNITS = 4, 3


@pytest.fixture(autouse=True)
def _fresh_keras():
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)


def made(**options):
    embedding = layers.FieldEmbedding([9] * FIELDS, UNITS, name="vectors", **options)
    return research.Tower(embedding, research.TowerModule(0.5, num_crosses=2), name="tower")


def ids(rows=6, seed=0):
    return tf.constant(np.random.default_rng(seed).integers(-1, 8, (rows, FIELDS)))


def model(layer):
    inputs = tf.keras.Input([FIELDS], dtype="int64", name="ids")
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(layer(inputs)))


def test_a_tower_is_its_module_of_the_vectors_of_its_embedding():
    layer, x = made(), ids()
    got = layer(x)
    assert got.shape == (6, 6) == layer.compute_output_shape((6, FIELDS))
    np.testing.assert_array_equal(got, layer.module(layer.embedding(x)))
    product = tf.gather(layer.embedding.embeddings, layer.embedding.entries(x).ids)
    np.testing.assert_allclose(
        layer.module.output_of(layer.embedding.vectors_of(product), layer.module.ordered_weights()),
        got,
        rtol=1e-6,
    )


def test_a_tower_trains_as_its_two_layers_do():
    trained = []
    for whole in (True, False):
        tf.keras.utils.set_random_seed(1)
        tower = made(l2=0.1)
        if whole:
            each = model(tower)
        else:
            inputs = tf.keras.Input([FIELDS], dtype="int64", name="ids")
            each = tf.keras.Model(
                inputs, tf.keras.layers.Dense(1)(tower.module(tower.embedding(inputs)))
            )
        each.compile(optimizers.Adagrad(0.1), "mse", jit_compile=False)
        for seed in range(3):
            each.train_on_batch(ids(seed=seed), np.ones((6, 1), "f"))
        trained.append(each.get_weights())
    for a, b in zip(*trained, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_a_tower_scores_as_in_keras(tmp_path):
    whole = model(made())
    got = scorer_of(whole, tmp_path / "s").predict({"ids": ids()})
    np.testing.assert_allclose(got, whole(ids()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "sum"}, "embedding must have no pooling, got 'sum'"),
        ({"projected_units": 2}, "embedding must have no projected_units, got 2"),
        ({"embeddings_regularizer": "l2"}, "embedding must have no embeddings_regularizer"),
    ],
)
def test_an_embedding_that_has_no_vectors_of_one_width_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)
    wide = layers.FieldEmbedding([9, 9], [2, 3])
    with pytest.raises(ValueError, match=r"vectors of one width, got units=\[2, 3\]"):
        research.Tower(wide, research.TowerModule())
