"""An ensemble predicts the mean of its members' probabilities, in every form that a model has."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export.test_raw_columns import SCHEMA as RAW_SCHEMA
from tests.export.test_raw_columns import columns, tensors, write_csv
from tests.models import test_field_models as fields
from tests.models import test_models as ragged
from tests.pairwise import on_both
from twml_ops import core, export, layers, models
from twml_ops.analysis.feature_groups import feature_groups
from twml_ops.analysis.weight_norms import weight_norms
from twml_ops.data import open_source
from twml_ops.export.tables import stored_variables
from twml_ops.optimizers import Adagrad

RAGGED_SCHEMA = ragged.GROUPS["all"]


def field_members(name="dcn", kind="categories", count=3):
    schema = fields.SCHEMAS[kind]
    return with_weights(fields.build(name, schema) for _ in range(count))


def ragged_members(count=2):
    features = ragged.features_of(RAGGED_SCHEMA, 32)
    data = tf.data.Dataset.from_tensors((features, np.arange(32)[:, None] % 2))
    options = {"units": 4, "hidden": (3,), "categorical_bits": 6}
    return with_weights(models.sparse_mlp(RAGGED_SCHEMA, data, **options) for _ in range(count))


def with_weights(members):
    """The models with random weights, which differ between them."""
    members = list(members)
    for i, member in enumerate(members):
        for k, v in enumerate(member.trainable_variables):
            v.assign(tf.random.stateless_normal(v.shape, [i, k], stddev=0.3))
    return members


def mean_of(members, features):
    return np.mean([member(features).numpy() for member in members], axis=0)


@pytest.fixture(params=on_both(["fields", "ragged"], "fields"))
def case(request):
    """(members, features)"""
    if request.param == "ragged":
        return ragged_members(), ragged.features_of(RAGGED_SCHEMA, 9, seed=3)
    return field_members(), fields.features_of(fields.SCHEMAS["categories"], 9, 3, "dcn")


@pytest.mark.one_tf
def test_its_prediction_is_the_mean_of_its_members_predictions(case):
    members, features = case
    model = models.ensemble(members)
    assert np.ptp([member(features).numpy() for member in members], axis=0).min() > 1e-4
    np.testing.assert_allclose(model(features), mean_of(members, features), atol=1e-6)
    assert models.layout_of(model) == models.layout_of(members[0])
    assert len(models.ensemble_members(model)) == len(members)
    assert models.ensemble_members(members[0]) == []


def test_a_file_of_it_predicts_the_same_and_has_the_same_members(case, tmp_path):
    members, features = case
    models.ensemble(members).save(str(tmp_path / "m.keras"))
    loaded = tf.keras.models.load_model(str(tmp_path / "m.keras"), compile=False)
    np.testing.assert_allclose(loaded(features), mean_of(members, features), atol=1e-6)
    for got, want in zip(models.ensemble_members(loaded), members, strict=True):
        np.testing.assert_allclose(got(features), want(features), atol=1e-6)


@pytest.mark.one_tf
def test_every_export_predicts_the_same(case, tmp_path):
    members, features = case
    model, want = models.ensemble(members), mean_of(members, features)
    export.to_tf(model, tmp_path / "fast")
    export.to_stock_tf(model, tmp_path / "stock")
    export.to_scorer(model, tmp_path / "scorer")
    for name in ("fast", "stock"):
        got = tf.saved_model.load(str(tmp_path / name))(features)
        np.testing.assert_allclose(got, want, atol=1e-6)
    flat = {}
    for name, value in features.items():
        if isinstance(value, tf.RaggedTensor):
            flat[f"{name.split('_')[0]}_row_splits"] = value.row_splits.numpy()
            value = value.flat_values
        flat[name] = value.numpy()
    flat.pop("row_keys", None)  # scorers do not take them
    scorer = core.Scorer.load(tmp_path / "scorer")
    np.testing.assert_allclose(scorer.predict(flat), want, atol=1e-6)


@pytest.mark.one_tf
def test_tables_of_fewer_bits_are_those_of_every_member(tmp_path):
    members = field_members(count=2)
    features = fields.features_of(fields.SCHEMAS["categories"], 9, 3, "dcn")

    def predict(model, path):
        export.to_scorer(model, path, tables="int8")
        return core.Scorer.load(path).predict({"categorical": features["categorical"].numpy()})

    model = models.ensemble(members)
    each = [predict(member, tmp_path / str(i)) for i, member in enumerate(members)]
    got = predict(model, tmp_path / "all")
    np.testing.assert_allclose(got, np.mean(each, axis=0), atol=1e-6)
    assert np.abs(got - mean_of(members, features)).max() > 1e-6
    assert len(stored_variables(model, "int8")) == 2 * len(stored_variables(members[0], "int8"))


@pytest.mark.one_tf
def test_exports_take_raw_columns(tmp_path):
    train = open_source(write_csv(tmp_path / "a.csv"), schema=RAW_SCHEMA)
    batches = train.dataset(64, layout="fields")
    model = models.ensemble(with_weights(models.logistic(train.schema, batches) for _ in range(2)))
    export.to_stock_tf(model, tmp_path / "stock", schema=train.schema)
    export.to_scorer(model, tmp_path / "scorer", schema=train.schema)
    got = core.Scorer.load(tmp_path / "scorer").predict(columns())
    raw = tf.saved_model.load(str(tmp_path / "stock")).signatures["raw"]
    (want,) = raw(**tensors()).values()
    assert got.shape == (5, 1)
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.one_tf
def test_each_label_has_its_own_mean():
    members = field_members("shared_bottom", "everything", count=2)
    features = fields.features_of(fields.SCHEMAS["everything"], 5, seed=3)
    got = models.ensemble(members)(features)
    each = [member(features) for member in members]
    assert set(got) == set(each[0])
    for label in got:
        np.testing.assert_allclose(
            got[label], np.mean([e[label].numpy() for e in each], axis=0), atol=1e-6
        )


@pytest.mark.one_tf
def test_members_lose_their_optimizers_and_share_their_weights():
    members = field_members("logistic")
    features = fields.features_of(fields.SCHEMAS["categories"], 9, seed=3)
    members[0].compile(Adagrad(0.1), "binary_crossentropy", jit_compile=False)
    members[0].fit(features, np.ones((9, 1), np.float32), verbose=0)
    model = models.ensemble(members)
    assert [getattr(m, "optimizer", None) for m in models.ensemble_members(model)] == [None] * 3
    assert len(model.weights) == sum(len(m.weights) for m in members)
    members[0].trainable_variables[0].assign_add(tf.ones_like(members[0].trainable_variables[0]))
    np.testing.assert_allclose(model(features), mean_of(members, features), atol=1e-6)


@pytest.mark.one_tf
def test_a_calibration_follows_the_mean():
    members = field_members()
    features = fields.features_of(fields.SCHEMAS["categories"], 9, 3, "dcn")
    model = models.ensemble(members)
    layer = layers.PlattScaling(name="calibration")
    layer.load_own_variables({"slopes": [2.0], "intercepts": [0.5], "base_rates": [0.5]})
    calibrated = tf.keras.Model(model.input, layer(model.output))
    want = layer(tf.constant(mean_of(members, features)))
    np.testing.assert_allclose(calibrated(features), want, atol=1e-6)
    assert len(models.ensemble_members(calibrated)) == 3


@pytest.mark.one_tf
def test_squared_weight_norms_are_means_over_the_members():
    members = ragged_members()
    features = ragged.features_of(RAGGED_SCHEMA, 30, seed=3)
    entries = len(features["categorical_ids"].flat_values)
    columns = np.arange(entries) % len(RAGGED_SCHEMA.categorical)
    groups = feature_groups(features, RAGGED_SCHEMA, columns)
    got = weight_norms(models.ensemble(members), features, groups)
    each = [weight_norms(member, features, groups) for member in members]
    assert got.keys() == each[0].keys()
    for name, norm in got.items():
        want = np.sqrt(np.mean([norms[name] ** 2 for norms in each]))
        assert norm == pytest.approx(want, rel=1e-5, nan_ok=True)


@pytest.mark.one_tf
def test_models_that_differ_in_their_inputs_or_outputs_are_refused():
    one = field_members("logistic", count=1)
    with pytest.raises(ValueError, match="at least two models, got 1"):
        models.ensemble(one)
    for other in (ragged_members(1), field_members("logistic", "numbers", 1)):
        with pytest.raises(ValueError, match=r"the same inputs and outputs: .* members\[1\] has"):
            models.ensemble([*one, *other])
    subclassed = type("Own", (tf.keras.Model,), {})()
    with pytest.raises(ValueError, match=r"functional models, members\[1\] is not"):
        models.ensemble([*one, subclassed])
