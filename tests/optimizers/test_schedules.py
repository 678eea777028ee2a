"""Learning-rate schedules."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import optimizers
from twml_ops.optimizers import LinearScalingWarmup

Decay = tf.keras.optimizers.schedules.PolynomialDecay


def test_the_rate_rises_evenly_from_the_base_rate_to_the_scaled_one():
    schedule = LinearScalingWarmup(0.1, 1024, 256, warmup_steps=3)
    rates = [float(schedule(step)) for step in range(6)]
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4], rtol=1e-6)


def test_without_warmup_the_rate_is_scaled_at_once():
    assert float(LinearScalingWarmup(0.1, 1024, 256)(0)) == pytest.approx(0.4)
    assert float(LinearScalingWarmup(0.1, 1024)(0)) == pytest.approx(0.4)  # of batches of 256
    assert float(LinearScalingWarmup(0.1, 1024, 256, scaling="sqrt")(0)) == pytest.approx(0.2)
    assert float(LinearScalingWarmup(0.1, 64, 64, warmup_steps=9)(4)) == pytest.approx(0.1)


def test_a_schedule_is_scaled_as_it_goes():
    schedule = LinearScalingWarmup(Decay(0.1, 10, 0.0), 512, 256, warmup_steps=5)
    for step, want in ((0, 0.1), (5, 0.1), (8, 0.04), (10, 0.0)):
        assert float(schedule(step)) == pytest.approx(want, abs=1e-7)


@pytest.mark.parametrize("rate", [0.1, Decay(0.1, 10, 0.0)], ids=["number", "schedule"])
def test_an_optimizer_takes_it_through_its_config(rate):
    schedule = LinearScalingWarmup(rate, 512, 256, warmup_steps=5, scaling="sqrt")
    config = optimizers.SGD(schedule).get_config()
    again = optimizers.SGD.from_config(config)
    w = tf.Variable([1.0])
    again.build([w])
    for _ in range(3):
        again.apply_gradients([(tf.constant([1.0]), w)])
    assert float(w[0]) == pytest.approx(1 - sum(float(schedule(s)) for s in range(3)), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be positive, got 0"),
        ({"batch_size": 8, "base_batch_size": -1}, "base_batch_size must be positive"),
        ({"batch_size": 8, "warmup_steps": -1}, "warmup_steps must not be negative, got -1"),
        ({"batch_size": 8, "scaling": "cubic"}, 'scaling must be "linear" or "sqrt"'),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LinearScalingWarmup(0.1, **arguments)
