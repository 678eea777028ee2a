"""Metrics of the latest batches."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops.metrics import (
    PRAUC,
    ROCAUC,
    CalibrationRatio,
    ExactROCAUC,
    NormalizedEntropy,
    RelativeCrossEntropy,
    Segmented,
    Windowed,
)

KEPT = [NormalizedEntropy, RelativeCrossEntropy, CalibrationRatio, ROCAUC, PRAUC]


def batches(seed, count, size=20):
    rng = np.random.default_rng(seed)
    y = (rng.random((count, size)) < 0.4).astype(np.float32)
    return list(zip(y, 0.3 * y + 0.7 * rng.random((count, size)), y + 0.5, strict=True))


@pytest.mark.parametrize("metric", KEPT)
@pytest.mark.parametrize("window", on_both([1, 3, 8], 3))
def test_is_the_metric_of_the_last_batches(metric, window):
    stream = batches(0, 7)
    m = Windowed(metric(), window)
    for i, batch in enumerate(stream):
        m.update_state(*batch)
        want = metric()
        for seen in stream[max(0, i + 1 - window) : i + 1]:
            want.update_state(*seen)
        assert float(m.result()) == pytest.approx(float(want.result()), rel=1e-6)


def test_batches_outside_of_the_window_have_no_effect_by_rounding():
    m, fresh = Windowed(CalibrationRatio(), 2), Windowed(CalibrationRatio(), 2)
    m.update_state([1.0], [0.5], [1e30])
    for batch in batches(1, 2):
        m.update_state(*batch)
        fresh.update_state(*batch)
    assert float(m.result()) == float(fresh.result())


def test_reset_empties_the_window():
    m = Windowed(NormalizedEntropy(), 3)
    for batch in batches(2, 4):
        m.update_state(*batch)
    m.reset_state()
    assert math.isnan(float(m.result()))


def test_windows_merge_by_adding():
    stream = batches(3, 4)
    a, b, want = Windowed(ROCAUC(), 2), Windowed(ROCAUC(), 2), ROCAUC()
    for m, part in ((a, stream[:2]), (b, stream[2:])):
        for batch in part:
            m.update_state(*batch)
            want.update_state(*batch)
    a.merge_state([b])
    assert float(a.result()) == pytest.approx(float(want.result()), rel=1e-6)


def test_segments_can_be_windowed():
    m, want = Windowed(Segmented(NormalizedEntropy(), 2), 2), Segmented(NormalizedEntropy(), 2)
    stream = batches(4, 3)
    segments = np.arange(20) % 2
    for batch in stream:
        m.update_state(*batch, segments=segments)
    for batch in stream[1:]:
        want.update_state(*batch, segments=segments)
    for key, value in want.result().items():
        assert float(m.result()[key]) == pytest.approx(float(value), rel=1e-6)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_reports_the_end_of_the_epoch(run_eagerly):
    stream = batches(5, 6, 16)
    y, p = (np.concatenate([b[i] for b in stream])[:, None] for i in (0, 1))
    model = tf.keras.Sequential([tf.keras.layers.Activation("linear")])
    model.compile("sgd", "mse", metrics=[Windowed(NormalizedEntropy(), 2)], run_eagerly=run_eagerly)
    logs = model.evaluate(p, y, batch_size=16, verbose=0, return_dict=True)
    want = NormalizedEntropy()
    want.update_state(y[-32:], p[-32:])
    got = logs["windowed_normalized_entropy"]
    assert got == pytest.approx(float(want.result()), rel=1e-4)


def test_config_round_trip():
    m = Windowed(Segmented(ROCAUC(9), ["a", "b"]), 7, name="lately")
    again = tf.keras.metrics.deserialize(tf.keras.metrics.serialize(m))
    assert type(again) is Windowed
    assert again.get_config() == m.get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ExactROCAUC(),), "metric must be a metric of this package"),
        ((Windowed(ROCAUC()),), "got Windowed"),
        ((ROCAUC(), 0), "window must be a positive integer, got 0"),
        ((ROCAUC(), 1.5), "window must be a positive integer, got 1.5"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Windowed(*arguments)


def test_an_update_writes_one_slot_of_the_ring():
    m = Windowed(ROCAUC(), 50)
    stream = batches(5, 60)

    @tf.function
    def update(*batch):
        m.update_state(*batch)  # which returns an operation with Keras 2

    step = update.get_concrete_function(*map(tf.constant, stream[0]))
    ring = [50, *ROCAUC().shape]
    made = [out for op in step.graph.get_operations() for out in op.outputs]
    assert not [out.name for out in made if out.shape.rank and out.shape.as_list() == ring]
    for batch in stream:
        update(*map(tf.constant, batch))
    want = ROCAUC()
    for batch in stream[-50:]:
        want.update_state(*batch)
    assert float(m.result()) == pytest.approx(float(want.result()), rel=1e-6)
