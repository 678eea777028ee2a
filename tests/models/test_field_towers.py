"""The fields of a model in towers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export.test_scorer_inventory import assert_scores_as_keras, flat_features
from tests.models.test_field_models import SCHEMAS, SMALL, by_label, data_of, features_of
from twml_ops import models
from twml_ops.models._towers import tower_fields
from twml_ops.optimizers import Adagrad
from twml_ops.research import TowerModule

EVERYTHING = SCHEMAS["everything"]  # c, a, b, t
OPTIONS = {**SMALL["dcn"], "field_towers": ["t+c", "a+b"], "tower_outputs": 0.5}


def build(**options):
    tf.keras.utils.set_random_seed(0)
    return models.dcn(EVERYTHING, data_of(EVERYTHING, name="dcn"), **OPTIONS | options)


@pytest.mark.parametrize("options", [{}, {"field_units": ["c:2"]}], ids=["one width", "several"])
def test_a_model_with_towers_trains_and_exports_the_same(options, tmp_path):
    model, data = build(**options), data_of(EVERYTHING, name="dcn")
    towers = [layer for layer in model.layers if isinstance(layer, TowerModule)]
    assert [list(tower.fields) for tower in towers] == [[3, 0], [1, 2]]
    assert [tower.kernel.shape for tower in towers] == [(8, 4), (8, 4)]
    model.compile(Adagrad(0.1), "binary_crossentropy", jit_compile=False)
    losses = model.fit(data, epochs=8, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]
    features = features_of(EVERYTHING, 7, seed=2, name="dcn")
    model.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras", compile=False)
    want, got = by_label(model(features)), by_label(again(features))
    for label, predicted in want.items():
        np.testing.assert_allclose(got[label], predicted, rtol=1e-5)
    assert_scores_as_keras(model, features, flat_features(features), str(tmp_path / "scorer"))


@pytest.mark.one_tf
def test_the_outputs_of_the_towers_take_the_place_of_the_vectors():
    def width(**options):
        return build(**options).get_layer("cross_0").kernel.shape[0]

    whole = width(field_towers=None)
    assert width() == whole - 16 + 8
    assert width(tower_outputs=None) == whole - 16 + 4
    assert width(tower_outputs=1.0) == whole


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("towers", "message"),
    [
        (["c+a"], "field_towers must have each field once, got 'b' 0 times"),
        (["c+a", "b+a"], "field_towers must have each field once, got 'a' 2 times"),
        (["c+x", "a+b"], "field_towers must name fields, got 'x'; the fields are c, a, b"),
        ([""], "field_towers must name fields, got ''"),
    ],
)
def test_wrong_towers_are_refused(towers, message):
    with pytest.raises(ValueError, match=message):
        tower_fields(towers, ["c", "a", "b"])
