"""Vectors of different widths for the fields of a model."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.test_field_models import SCHEMAS, SMALL, by_label, data_of, features_of
from tests.pairwise import SLOW, on_both
from twml_ops import export, models
from twml_ops.core import Scorer
from twml_ops.models._fields import field_widths
from twml_ops.optimizers import Adagrad

FIELDS = [("city", 1), ("film", 16), ("user", 80), ("site", 10**6)]
EVERYTHING = SCHEMAS["everything"]


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (None, [8, 8, 8, 8]),
        (["auto"], [1, 2, 3, 8]),
        (["user:5", "city:16"], [16, 8, 5, 8]),
        ([], [8, 8, 8, 8]),
    ],
)
def test_the_width_is_given_or_the_fourth_root_of_the_rows(given, want):
    assert field_widths(given, FIELDS, 8) == want


@pytest.mark.parametrize("item", ["city", "city:", "city:0", "city:-1", "city:x", ":3", "town:2"])
def test_wrong_widths_are_refused(item):
    with pytest.raises(ValueError, match="field_units must"):
        field_widths([item], FIELDS, 8)


WITH_WIDTHS = sorted(set(SMALL) - {"logistic", "dhen"})


@pytest.mark.one_tf
@pytest.mark.parametrize("name", [*on_both(WITH_WIDTHS, "dcn"), pytest.param("dhen", marks=SLOW)])
def test_models_with_several_widths_train_and_export_the_same(name, tmp_path):
    tf.keras.utils.set_random_seed(0)
    data = data_of(EVERYTHING, name=name)
    options = {**SMALL[name], "field_units": ["c:2", "t:5"]}
    model = models.get(name)(EVERYTHING, data, **options)
    embedding = model.get_layer("embedding")
    assert embedding.units == [2, 4, 4, 5]  # c, a, b, t
    assert embedding.projected_units == (None if name == "dcn" else 4)
    model.compile(Adagrad(0.1), "binary_crossentropy", jit_compile=False)
    losses = model.fit(data, epochs=8, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]
    features = features_of(EVERYTHING, 7, seed=2, name=name)
    want = by_label(model(features))
    path = str(tmp_path / "m.keras")
    model.save(path)
    got = by_label(tf.keras.models.load_model(path, compile=False)(features))
    export.to_scorer(model, str(tmp_path / "scorer"))
    scorer = Scorer.load(str(tmp_path / "scorer"))
    flat = {}
    for key, value in features.items():
        if isinstance(value, tf.RaggedTensor):
            flat[key] = value.flat_values.numpy()
            flat[f"{key.rpartition('_')[0]}_row_splits"] = value.row_splits.numpy()
        else:
            flat[key] = value.numpy()
    scored = scorer.predict({key: flat[key] for key in scorer.inputs})
    for label in want:
        np.testing.assert_allclose(got[label], want[label], rtol=1e-6)
        np.testing.assert_allclose(scored[label], want[label], rtol=1e-4)


def test_fields_have_matrices_only_with_the_option():
    schema, data = SCHEMAS["categories"], data_of(SCHEMAS["categories"])
    for field_units, units, projected in ((["c:3"], [3, 3], 3), (None, 3, None)):
        model = models.fm(schema, data, units=3, field_units=field_units)
        assert model.get_layer("embedding").units == units
        assert model.get_layer("embedding").projected_units == projected
