"""The calibration of `twml-ops calibrate`, which is fitted to scores with sample weights."""

import numpy as np
import pytest

from twml_ops.analysis.scoring import Scores
from twml_ops.training.calibration import METHODS, fit_calibration
from twml_ops.training.errors import UserError

pytestmark = pytest.mark.one_tf


def scores(weights):
    rng = np.random.default_rng(2)
    p = rng.random(400).astype(np.float32)
    y = (rng.random(400) < p**2).astype(np.float32)
    w = None if weights is None else np.asarray(weights(rng, y), np.float32)
    return Scores(y, p, 0.0, w)


def fitted(method, weights):
    layer = fit_calibration(method, scores(weights), "d")
    return layer(np.linspace(0, 1, 50, dtype=np.float32)).numpy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("unit", [1e-30, 1e-4, 1e6])
def test_the_unit_of_the_weights_changes_nothing(method, unit):
    def of(unit):
        return lambda rng, y: rng.random(len(y)).astype(np.float32) * np.float32(unit)

    np.testing.assert_allclose(fitted(method, of(unit)), fitted(method, of(1.0)), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_equal_weights_are_no_weights(method):
    equal = fitted(method, lambda rng, y: np.full(len(y), 0.003))
    np.testing.assert_allclose(equal, fitted(method, None), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_labels_without_weight_are_no_class(method):
    with pytest.raises(UserError, match="only labels of 0, expected both classes"):
        fit_calibration(method, scores(lambda rng, y: 1 - y), "d")
    with pytest.raises(UserError, match="no examples with a weight"):
        fit_calibration(method, scores(lambda rng, y: 0 * y), "d")
