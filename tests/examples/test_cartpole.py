"""The example of a policy: episodes are played, snapshots taken, and their ensemble plays."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium") is None, reason="needs gymnasium"
)

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "cartpole.py"


@pytest.fixture(scope="module")
def cartpole():
    spec = importlib.util.spec_from_file_location("cartpole", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_policy_plays_longer_after_the_training(cartpole):
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    before = cartpole.mean_length(cartpole.policy(), 5)
    assert cartpole.mean_length(cartpole.train(3, 8, 0), 5) > 1.5 * before


def test_a_training_with_snapshots_returns_the_length_of_each_policy(cartpole):
    found = cartpole.run(2, 4, 2, 2, 0.1, 0)
    assert len(found) == 4
    assert all(1 <= length <= 500 for length in found.values())


def test_episodes_of_a_seed_are_the_same_and_end_when_the_pole_falls(cartpole):
    model = cartpole.policy()
    one, two = (cartpole.play(model, [3, 4], np.random.default_rng(0)) for _ in range(2))
    for (x, actions), (again, same) in zip(one, two, strict=True):
        np.testing.assert_array_equal(x, again)
        np.testing.assert_array_equal(actions, same)
        assert abs(x[-1, 2]) < 0.2095  # radians; the episode ends beyond
        assert len(x) == len(actions) < 500
