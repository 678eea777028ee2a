"""Every public layer and model exports to the scorer, or is refused by name with a reason."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.test_field_models import SCHEMAS, features_of
from tests.models.test_field_models import build as field_model
from tests.pairwise import on_both
from twml_ops import core, export, layers, models
from twml_ops.export.scorer import _LAYERS

# Public layers and models that the scorer does not support, and why.
REFUSED: dict[str, str] = {"FieldInteraction": "it is abstract"}


def public_layers():
    found = [getattr(room, name) for room in (layers, models) for name in room.__all__]
    return [x for x in found if isinstance(x, type) and issubclass(x, tf.keras.layers.Layer)]


@pytest.mark.parametrize("kind", public_layers(), ids=lambda kind: kind.__name__)
def test_every_public_layer_has_a_conversion_or_a_reason(kind):
    supported = any(issubclass(kind, known) for known in _LAYERS)
    assert supported != (kind.__name__ in REFUSED)


def flat_features(features):
    """The features as a scorer takes them."""
    flat = {}
    for name, x in features.items():
        if isinstance(x, tf.RaggedTensor):
            flat[name] = x.flat_values.numpy()
            flat[f"{name.rsplit('_', 1)[0]}_row_splits"] = x.row_splits.numpy()
        elif name != "row_keys":
            flat[name] = x.numpy()
    return flat


def assert_scores_as_keras(model, features, flat, path):
    """The scorer agrees with the model to 1e-6."""
    export.to_scorer(model, path)
    scorer = core.Scorer.load(path)
    got = scorer.predict({name: flat[name] for name in scorer.inputs})
    want = model(features)
    if not isinstance(want, dict):
        got, want = {"output": got}, {"output": want}
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6)


@pytest.mark.one_tf
@pytest.mark.parametrize(
    "name", on_both(sorted(set(models.names()) - {"sparse_mlp"}), "dcn", "mmoe")
)
def test_every_model_with_several_labels_scores_as_in_keras(tmp_path, name):
    schema = SCHEMAS["everything"]
    assert len(schema.labels) > 1
    model = field_model(name, schema)
    for v in model.trainable_variables:
        v.assign(tf.random.stateless_normal(v.shape, [1, 2], stddev=0.1))
    features = features_of(schema, 9, seed=2, name=name)
    assert_scores_as_keras(model, features, flat_features(features), tmp_path / "s")
    assert sorted(core.Scorer.load(tmp_path / "s").outputs) == sorted(schema.labels)


@pytest.mark.one_tf
def test_an_ensemble_with_several_labels_scores_as_in_keras(tmp_path):
    schema = SCHEMAS["everything"]
    members = [field_model("shared_bottom", schema) for _ in range(2)]
    for i, member in enumerate(members):
        for v in member.trainable_variables:
            v.assign(tf.random.stateless_normal(v.shape, [i, 2], stddev=0.1))
    features = features_of(schema, 9, seed=2, name="shared_bottom")
    model = models.ensemble(members)
    assert_scores_as_keras(model, features, flat_features(features), tmp_path / "s")


def ragged_inputs(*names):
    kinds = {"x_ids": "int64", "x_values": "float32"}
    return [tf.keras.Input([None], dtype=kinds[n], ragged=True, name=n) for n in names]


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("kind", ["lookup", "linear"])
def test_ids_with_and_without_a_row_score_as_in_keras(tmp_path, kind, values):
    inputs = ragged_inputs(*(["x_ids", "x_values"] if values else ["x_ids"]))
    given = inputs if values else inputs[0]
    options = {"kernel_initializer": "random_normal", "bias_initializer": "ones"}
    if kind == "linear":
        dynamic = layers.DynamicSparseLinear(3, 8, seed=7, activation="tanh", **options)
        model = tf.keras.Model(given, dynamic(given))
    else:
        dynamic = layers.DynamicLookup(8, seed=7)
        model = tf.keras.Model(given, layers.SparseLinear(3, 8, **options)(dynamic(given)))

    def batch(ids, row_splits):
        parts = [np.array(ids), np.arange(1, 1 + len(ids), dtype=np.float32)][: len(inputs)]
        made = [tf.RaggedTensor.from_row_splits(x, np.array(row_splits)) for x in parts]
        flat = dict(zip(("x_ids", "x_values"), parts, strict=False))
        return made if values else made[0], flat | {"x_row_splits": np.array(row_splits)}

    dynamic(batch([1 << 62, -1, 5, -(1 << 63), 5], [0, 2, 5])[0], training=True)
    ids = [5, 6, -1, 1 << 62, 0, -(1 << 63)]
    features, flat = batch(ids, [0, 2, 3, 3, 6])
    assert_scores_as_keras(model, features, flat, tmp_path / "s")
    if not values:
        scorer = core.Scorer.load(tmp_path / "s")
        unseen = [scorer.predict([i]) for i in (6, 7, 1 << 50)]
        np.testing.assert_array_equal(unseen[0], unseen[1])
        np.testing.assert_array_equal(unseen[0], unseen[2])
        assert (unseen[0] != scorer.predict([5])).any()


def test_training_after_an_export_does_not_change_the_scorer(tmp_path):
    (inputs,) = ragged_inputs("x_ids")
    layer = layers.DynamicSparseLinear(2, 4, kernel_initializer="random_normal")
    model = tf.keras.Model(inputs, layer(inputs))
    ids = tf.ragged.constant([[10, 11]], tf.int64)
    layer(ids, training=True)
    export.to_scorer(model, tmp_path / "1")
    scorer = core.Scorer.load(tmp_path / "1")
    before = scorer.predict([10])
    layer(tf.ragged.constant([[20, 21, 22]], tf.int64), training=True)
    np.testing.assert_array_equal(scorer.predict([10]), before)
    export.to_scorer(model, tmp_path / "2", base=tmp_path / "1")
    scorer.reload(tmp_path / "2")
    np.testing.assert_allclose(scorer.predict([20]), model(tf.ragged.constant([[20]], tf.int64)))


def test_strings_integers_and_bools_are_hashed_as_in_keras(tmp_path):
    inputs = {
        "city": tf.keras.Input((), dtype="string", name="city"),
        "age": tf.keras.Input((1,), dtype="int32", name="age"),
        "new": tf.keras.Input((1,), dtype="bool", name="new"),
        "other": tf.keras.Input((1,), name="other"),  # which the layer ignores
    }
    ids = layers.StringHash(["new", "city", "age"])(inputs)
    vectors = layers.FieldEmbedding([5, 5, 5], 2)(layers.CategoryRows(3, max_rows=4)(ids))
    model = tf.keras.Model(inputs, [tf.keras.layers.Flatten()(vectors), inputs["other"]])
    rows = next(layer for layer in model.layers if isinstance(layer, layers.CategoryRows))
    flat = {
        "city": np.array(["Zürich", "", "x", "Zürich"]),
        "age": np.array([[3], [-4], [3], [0]], np.int32),
        "new": np.array([[True], [False], [True], [True]]),
        "other": np.float32([[1], [2], [3], [4]]),
    }
    features = {name: tf.constant(x) for name, x in flat.items()}
    rows.adapt([layers.StringHash(["new", "city", "age"])(features)])
    export.to_scorer(model, tmp_path / "s")
    got = core.Scorer.load(tmp_path / "s").predict(flat)
    for array, want in zip(got.values(), model(features), strict=True):
        np.testing.assert_allclose(array, want, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"units": [3, 2, 3, 2]},
        {"units": [3, 2, 3, 2], "projected_units": 4},
        {"units": [3, 2, 3, 2], "projected_units": 4, "pooling": "mean"},
        {"units": 3, "projected_units": 2, "pooling": "sqrtn"},
        {"units": 3, "projected_units": 2, "pooling": "sum"},
    ],
)
def test_fields_of_several_widths_score_as_in_keras(tmp_path, options):
    ids = tf.keras.Input((3,), dtype="int64", name="ids")
    bag = tf.keras.Input((None,), dtype="int64", ragged=True, name="bag_ids")
    made = layers.FieldEmbedding([5, 7, 6, 4], num_bags=1, out_of_range="wrap", **options)(
        [ids, bag]
    )
    model = tf.keras.Model([ids, bag], made)
    flat = {
        "ids": np.random.default_rng(0).integers(-1, 9, (6, 3)),
        "bag_ids": np.array([3, 4, -1, 8]),
        "bag_row_splits": np.array([0, 2, 2, 3, 3, 4, 4]),
    }
    batch = tf.RaggedTensor.from_row_splits(flat["bag_ids"], flat["bag_row_splits"])
    export.to_scorer(model, tmp_path / "s")
    got = core.Scorer.load(tmp_path / "s").predict(flat)
    got = list(got.values()) if isinstance(got, dict) else [got]
    want = tf.nest.flatten(model([tf.constant(flat["ids"]), batch]))
    for array, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["matrix", "bag", "integers"])
def test_tensors_of_categories_are_hashed_as_in_keras(tmp_path, kind):
    columns = ["a", "b"] if kind == "matrix" else ["a"]
    if kind == "matrix":
        x = tf.keras.Input((2,), dtype="string", name="x")
        values = tf.constant([["p", ""], ["", "Zürich"]])
        flat = {"x": values.numpy()}
    else:
        dtype = "string" if kind == "bag" else "int64"
        x = tf.keras.Input((None,), dtype=dtype, ragged=True, name="x")
        texts = tf.ragged.constant([["p", "", "q"], [], ["p"]])
        numbers = tf.ragged.constant([[5, -7], [], [1 << 60]], tf.int64)
        values = texts if kind == "bag" else numbers
        flat = {"x": values.flat_values.numpy(), "x_row_splits": values.row_splits.numpy()}
    ids = models.HashedIds(8)(layers.StringHash(columns)(x))
    model = tf.keras.Model(x, layers.SparseLinear(3, 1 << 8)(ids))
    if kind == "matrix":  # ids [B, F] are a padded batch, which is no batch of a scorer
        model = tf.keras.Model(x, tf.keras.layers.Flatten()(layers.StringHash(columns)(x)))
        export.to_scorer(model, tmp_path / "s")
        got = core.Scorer.load(tmp_path / "s").predict(flat)
        np.testing.assert_array_equal(got, model(values).numpy().astype(np.float32))
        return
    assert_scores_as_keras(model, values, flat, tmp_path / "s")


def test_categories_without_a_text_are_refused_with_the_name_of_the_layer(tmp_path):
    x = tf.keras.Input((1,), dtype="uint64", name="x")
    model = tf.keras.Model(x, layers.StringHash("x", name="hash")(x))
    with pytest.raises(ValueError, match="layer 'hash' must be called with .* got .*uint64"):
        export.to_scorer(model, tmp_path / "s")


def test_outputs_have_the_names_of_the_model(tmp_path):
    x = tf.keras.Input((2,), name="x")
    first, second = (tf.keras.layers.Dense(n, name=f"d{n}") for n in (1, 3))
    model = tf.keras.Model(x, {"b": first(x), "a": second(x)})
    values = np.ones([4, 2], np.float32)
    assert_scores_as_keras(model, tf.constant(values), {"x": values}, tmp_path / "dict")
    with pytest.raises(ValueError, match="output_name must be None .* 2 outputs, got 'p'"):
        export.to_scorer(model, tmp_path / "s", output_name="p")
    listed = tf.keras.Model(x, [first(x), second(x)])
    export.to_scorer(listed, tmp_path / "list")
    scorer = core.Scorer.load(tmp_path / "list")
    assert scorer.outputs == {"d1": (1,), "d3": (3,)}
    twice = tf.keras.Model(x, list(tf.keras.layers.Lambda(lambda t: [t, t], name="l")(x)))
    with pytest.raises(ValueError, match="layer 'l' is a Lambda; the scorer supports"):
        export.to_scorer(twice, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_an_output_of_unknown_shape_among_several_is_refused(tmp_path):
    x = tf.keras.Input((None, 2), name="x")
    known = tf.keras.Input((2,), name="y")
    model = tf.keras.Model([x, known], [x, known])
    with pytest.raises(ValueError, match="must have a known shape"):
        export.to_scorer(model, tmp_path / "s")
