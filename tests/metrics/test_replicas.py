"""Metrics under a distribution strategy, where the tallies of the replicas are added."""

import numpy as np
import pytest
import tensorflow as tf

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

MAKE = {
    "ne": NormalizedEntropy,
    "rce": RelativeCrossEntropy,
    "calibration": CalibrationRatio,
    "roc": lambda: ROCAUC(100),
    "pr": lambda: PRAUC(100),
    "segmented": lambda: Segmented(NormalizedEntropy(), 2, "mean"),
    "windowed": lambda: Windowed(NormalizedEntropy(), 2),
}


@pytest.fixture(scope="module")
def strategy():
    # Collectives of two strategies in one process would get in each other's way.
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def stream(n):
    rng = np.random.default_rng(0)
    y = (rng.random(n) < 0.4).astype(np.float32)
    return y, (0.3 * y + 0.7 * rng.random(n)).astype(np.float32)


@pytest.mark.parametrize("name", MAKE)
def test_replicas_together_equal_one_replica(strategy, name):
    y, p = stream(48)
    if name == "segmented":
        y = np.stack([y, np.arange(48) % 2], axis=1).astype(np.float32)
    with strategy.scope():
        m = MAKE[name]()
    data = tf.data.Dataset.from_tensor_slices((y, p)).batch(16)

    @tf.function
    def update(y, p):
        strategy.run(m.update_state, args=(y, p))

    for y_batch, p_batch in strategy.experimental_distribute_dataset(data):
        update(y_batch, p_batch)
    want = MAKE[name]()
    for rows in (slice(0, 16), slice(16, 32), slice(32, 48)):
        want.update_state(y[rows], p[rows])
    assert float(m.result()) == pytest.approx(float(want.result()), rel=1e-5)


def test_fit_on_two_replicas(strategy):
    y, p = stream(64)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="sigmoid")])
        model.compile(
            "sgd", "binary_crossentropy", metrics=[ROCAUC(), RelativeCrossEntropy()],
            jit_compile=False,
        )  # fmt: skip
    data = tf.data.Dataset.from_tensor_slices((p[:, None], y[:, None])).batch(16)
    model.fit(data, verbose=0)
    logs = model.evaluate(data, verbose=0, return_dict=True)
    scores = model(p[:, None]).numpy()
    for metric in (ROCAUC(), RelativeCrossEntropy()):
        metric.update_state(y, scores)
        assert logs[metric.name] == pytest.approx(float(metric.result()), rel=1e-3)


def test_a_metric_that_stores_every_example_is_refused(strategy):
    with strategy.scope(), pytest.raises(ValueError, match="needs a single replica, got 2"):
        ExactROCAUC()
