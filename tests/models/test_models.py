"""The model registry and the models."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import pairwise
from twml_ops import models
from twml_ops.data import Schema
from twml_ops.models import HashedIds, sparse_mlp
from twml_ops.ops import hash_ids
from twml_ops.optimizers import LazyAdam

GROUPS = {
    "continuous": Schema(("a", "b"), (), 0, "x"),
    "categorical": Schema((), ("c", "d"), 0, "x"),
    "sparse": Schema((), (), 50, "x"),
    "all": Schema(("a", "b"), ("c", "d"), 50, "x"),
}


def ragged(rng, rows, dtype, top):
    """Rows of 0 to 3 entries: empty ones are legal."""
    lengths = rng.integers(0, 4, rows)
    flat = (
        rng.integers(0, top, lengths.sum()) if dtype == "int64" else rng.normal(size=lengths.sum())
    )
    return tf.RaggedTensor.from_row_lengths(tf.constant(flat, dtype), lengths)


def features_of(schema, rows, seed=0):
    rng = np.random.default_rng(seed)
    tops = {"continuous": 2, "categorical": 1 << 62, "sparse": schema.sparse_dim}
    features = {}
    for group, has_values in schema.groups.items():
        ids = ragged(rng, rows, "int64", tops[group])
        features[f"{group}_ids"] = ids
        if has_values:
            values = rng.normal(size=int(tf.size(ids.flat_values)))
            features[f"{group}_values"] = ids.with_flat_values(tf.constant(values, tf.float32))
    return features


def data_of(schema, rows=64, batch=16):
    features = features_of(schema, rows)
    labels = np.random.default_rng(1).integers(0, 2, (rows, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch)


def small(schema, data=None):
    tf.keras.utils.set_random_seed(0)
    return sparse_mlp(schema, data or data_of(schema), units=4, hidden=(3,), categorical_bits=8)


@pairwise(name=[*GROUPS], run_eagerly=[False, True])
def test_any_groups_of_features_train(name, run_eagerly):
    schema = GROUPS[name]
    data = data_of(schema)
    model = small(schema, data)
    assert {t.name.split(":")[0] for t in tf.nest.flatten(model.input)} == {*features_of(schema, 1)}
    model.compile(LazyAdam(0.05), "binary_crossentropy", jit_compile=False, run_eagerly=run_eagerly)
    epochs = 1 if run_eagerly else 20
    losses = model.fit(data, epochs=epochs, verbose=0, shuffle=False).history["loss"]
    assert np.isfinite(losses).all()
    if not run_eagerly:
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", GROUPS)
def test_keras_file_predicts_the_same(tmp_path, name):
    model = small(GROUPS[name])
    features = features_of(GROUPS[name], 7, seed=2)
    path = str(tmp_path / "m.keras")
    model.save(path)
    again = tf.keras.models.load_model(path, compile=False)
    np.testing.assert_allclose(again(features), model(features), rtol=1e-6)


def test_untrained_model_predicts_the_base_rate_for_an_empty_row():
    schema = GROUPS["sparse"]
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int64), [0] * 30)
    features = {"sparse_ids": empty, "sparse_values": tf.cast(empty, tf.float32)}
    labels = (np.arange(30) < 6).astype(np.float32)[:, None]
    data = tf.data.Dataset.from_tensors((features, labels))
    got = small(schema, data)(features).numpy()
    np.testing.assert_allclose(got, 7 / 32, rtol=1e-5)


def test_discretizer_is_adapted_on_the_training_data():
    schema = GROUPS["continuous"]
    model = small(schema)
    assert model.get_layer("deep_buckets").input_dim == model.get_layer("buckets").output_dim > 2


def test_schema_without_features_is_refused():
    with pytest.raises(ValueError, match="at least one feature"):
        small(Schema((), (), 0, "x"), data_of(GROUPS["sparse"]))


def test_registry_knows_its_names():
    fields = ["dcn", "deepfm", "dhen", "dlrm", "fm", "logistic", "mmoe", "shared_bottom"]
    assert models.names() == sorted([*fields, "sparse_mlp"])
    for name in fields:
        wanted = "keyed_fields" if name == "dcn" else "fields"
        assert models.layout_of(models.get(name)) == wanted
    for trees, wanted in ((False, "fields"), (True, "keyed_fields"), (None, "keyed_fields")):
        assert models.layout_of(models.deepfm, {"trees": trees}) == wanted
    assert models.get("sparse_mlp") is sparse_mlp
    with pytest.raises(ValueError, match="'nosuch': expected one of dcn, deepfm, "):
        models.get("nosuch")


@pytest.mark.parametrize("bits", [1, 8, 62])
def test_hashed_ids_are_those_of_the_op_in_every_form(bits):
    ids = np.array([[3, 1 << 61], [-7, 0]], np.int64)
    want = hash_ids(ids, bits).numpy()
    layer = HashedIds(bits)
    assert want.max() < layer.output_dim == 1 << bits
    np.testing.assert_array_equal(layer(tf.constant(ids)), want)
    rows = tf.RaggedTensor.from_row_lengths(tf.constant(ids.ravel()), [3, 1])
    np.testing.assert_array_equal(layer(rows).flat_values, want.ravel())
    pair = layer((rows, tf.cast(rows, tf.float32)))
    np.testing.assert_array_equal(pair[0].flat_values, want.ravel())


def test_hashed_ids_keep_padding_and_round_trip():
    layer = HashedIds(8, name="h")
    got = layer(tf.constant([[5, -1]], tf.int64)).numpy()
    assert got[0, 1] == -1
    assert HashedIds.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize("bits", [0, 63])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match="bits"):
        HashedIds(bits)
