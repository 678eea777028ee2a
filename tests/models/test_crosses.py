"""`dcn` with statistics of crosses of categorical features."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import _keras, core, export, models
from twml_ops.data import Schema
from twml_ops.layers import CountStatistics, TargetStatistics
from twml_ops.models import choose_crosses
from twml_ops.models._crosses import cross_names, cross_positions

SCHEMA = Schema(("a",), ("c", "d", "e"), 0, "x")
ROWS, VALUES = 3000, 15
OPTIONS = {"units": 1, "hidden": (2,), "trees": False}


def examples(seed=0, labels=("label",)):
    """A dataset whose label depends on the cell of the first and the last category."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, VALUES, (ROWS, 3))
    cells = np.random.default_rng(7).choice([-1, 1], (VALUES, VALUES))
    logit = 2.5 * cells[codes[:, 0], codes[:, 2]]
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(np.float32)[:, np.newaxis]
    features = {
        "row_keys": np.arange(ROWS) + seed * ROWS,
        "continuous": rng.normal(size=(ROWS, 1)).astype(np.float32),
        "continuous_present": rng.random((ROWS, 1)) < 0.9,
        "categorical": codes * 10**14,
    }
    target = y if len(labels) == 1 else dict.fromkeys(labels, y)
    return features, tf.data.Dataset.from_tensor_slices((features, target)).batch(512)


def statistics_of(model):
    kinds = (TargetStatistics, CountStatistics)
    return [layer for layer in _keras.all_layers(model) if isinstance(layer, kinds)]


@pytest.fixture(scope="module")
def model():
    return models.dcn(SCHEMA, examples()[1], **OPTIONS)


@pytest.mark.one_tf
def test_crosses_that_gain_are_chosen_by_default(model):
    for layer in statistics_of(model):
        assert layer.crosses[0] == (0, 2)
        assert layer.adapted
    none = models.dcn(SCHEMA, examples()[1], crosses=(), **OPTIONS)
    assert [layer.crosses for layer in statistics_of(none)] == [(), ()]


def test_named_crosses_have_the_same_statistics_as_chosen_ones(model):
    crosses = cross_names(statistics_of(model)[0].crosses, SCHEMA)
    assert crosses[0] == "c*e"
    again = models.dcn(SCHEMA, examples()[1], crosses=crosses, **OPTIONS)
    for one, other in zip(statistics_of(model), statistics_of(again), strict=True):
        assert one.crosses == other.crosses
        for a, b in zip(one.state_variables, other.state_variables, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.one_tf
def test_a_sample_that_is_not_complete_is_counted_again(model, monkeypatch):
    monkeypatch.setattr("twml_ops.models._crosses._MAX_EXAMPLES", 2000)
    smaller = models.dcn(SCHEMA, examples()[1], **OPTIONS)
    for layer in statistics_of(smaller):
        assert layer.crosses[0] == (0, 2)
        totals = layer.state_variables[-1].numpy()
        assert totals[:, 0].sum() == ROWS


@pytest.mark.one_tf
def test_other_examples_decide_whether_crosses_gain():
    (_, fit), (_, same) = examples(0), examples(1)
    assert choose_crosses(SCHEMA, fit, same)[0] == "c*e"
    opposite = same.map(lambda x, y: (x, 1 - y))
    assert choose_crosses(SCHEMA, fit, opposite) == []


@pytest.mark.one_tf
def test_several_labels_share_their_crosses():
    schema = Schema(("a",), ("c", "d", "e"), 0, "x", labels=("click", "sale"))
    _, dataset = examples(labels=schema.labels)
    made = models.dcn(schema, dataset, **OPTIONS)
    found = statistics_of(made)
    assert len(found) == 3
    assert len({layer.crosses for layer in found}) == 1
    assert found[0].crosses[0] == (0, 2)


@pytest.mark.parametrize("cross", ["c", "c*c", "c*f", ""])
def test_a_cross_of_other_features_is_an_error(cross):
    with pytest.raises(ValueError, match="the features are c, d, e"):
        cross_positions([cross], SCHEMA)


def test_files_clones_and_exports_have_the_crosses(model, tmp_path):
    features, _ = examples(seed=3)
    want = model(features).numpy()
    model.save(tmp_path / "m.keras")
    np.testing.assert_allclose(tf.keras.models.load_model(tmp_path / "m.keras")(features), want)
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(features), want, atol=1e-6)
    export.to_scorer(model, tmp_path / "scorer")
    flat = {name: x for name, x in features.items() if name != "row_keys"}
    got = core.Scorer.load(tmp_path / "scorer").predict(flat)
    np.testing.assert_allclose(got, want, atol=1e-6)
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(str(tmp_path / "stock")).signatures["serving_default"]
    (result,) = served(**{n: tf.constant(x) for n, x in flat.items()}).values()
    np.testing.assert_allclose(result, want, atol=1e-6)
