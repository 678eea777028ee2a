"""The state of the layers is restored bit for bit from every kind of file."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers

WIDTH = 5
RNG = np.random.default_rng(0)
IDS = np.tile(np.arange(WIDTH), (300, 1))
# Subnormal, huge, infinite, missing, few and many values
VALUES = np.stack(
    [
        RNG.normal(size=300) * 1e-41,
        RNG.standard_cauchy(300) * 1e30,
        RNG.choice([-np.inf, 0, np.inf], 300),
        np.full(300, np.nan),
        RNG.normal(size=300),
    ],
    axis=1,
).astype(np.float32)
LABELS = (RNG.random(300) < 1 / (1 + np.exp(-VALUES[:, 4]))).astype(np.int64)


def percentile():
    layer = layers.PercentileDiscretizer(7, epsilon=0.1, keep_sketch=True)
    layer.adapt((IDS, VALUES))
    return layer, [*layer.state_variables, *layer.sketch_variables]


def hashing():
    layer = layers.HashingDiscretizer(12, num_bins=7, epsilon=0.1, keep_sketch=True)
    layer.adapt((IDS, VALUES))
    return layer, [*layer.state_variables, *layer.sketch_variables]


def mdl():
    layer = layers.MDLDiscretizer(2)
    layer.adapt(tf.data.Dataset.from_tensors(((IDS, VALUES), LABELS)))
    return layer, layer.state_variables


def max_norm():
    layer = layers.MaxNorm(WIDTH, nonfinite="zero")
    layer((tf.constant(IDS), tf.constant(VALUES)), training=True)
    return layer, layer.variables


def standardize():
    layer = layers.OnlineStandardize(WIDTH, nonfinite="zero")
    layer((tf.constant(IDS), tf.constant(VALUES)), training=True)
    return layer, layer.variables


def target_statistics():
    layer = layers.TargetStatistics(WIDTH, crosses=[(0, 1)])
    layer.adapt([((IDS, np.arange(len(IDS))), LABELS)])
    return layer, layer.state_variables


def count_statistics():
    layer = layers.CountStatistics(WIDTH, crosses=[(0, 1)])
    layer.adapt([((IDS, np.arange(len(IDS))), LABELS)])
    return layer, layer.state_variables


def isotonic():
    layer = layers.IsotonicCalibration(1)
    layer.adapt(1 / (1 + np.exp(-2 * VALUES[:, 4])), LABELS.astype(np.float32))
    return layer, layer.state_variables


def platt():
    layer = layers.PlattScaling(1)
    layer.adapt(1 / (1 + np.exp(-2 * VALUES[:, 4])), LABELS.astype(np.float32))
    return layer, layer.state_variables


STATISTICS = (target_statistics, count_statistics)
KINDS = (percentile, hashing, mdl, max_norm, standardize, isotonic, platt, *STATISTICS)
every_kind = pytest.mark.parametrize("make", KINDS, ids=[k.__name__ for k in KINDS])


def name_of(variable):
    """Without the layer's name, which Keras 2 puts before it."""
    return variable.name.split("/")[-1]


def variables_of(layer):
    """All that it keeps, by name."""
    kept = [*layer.variables, *getattr(layer, "state_variables", [])]
    return {name_of(v): v for v in [*kept, *getattr(layer, "sketch_variables", [])]}


def assert_same_bits(got, want):
    assert got.keys() == want.keys()
    for name, variable in want.items():
        a, b = np.asarray(got[name]), np.asarray(variable)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes(), name


@every_kind
def test_every_layer_has_a_state(make):
    layer, state = make()
    names = variables_of(layer)
    assert {name_of(v) for v in state} <= names.keys()
    assert any(np.any(np.asarray(v)) for v in state)


@every_kind
def test_a_keras_file_keeps_every_bit(make, tmp_path):
    layer, _ = make()
    inputs = [tf.keras.Input([None], dtype="int64"), tf.keras.Input([None])]
    if make in (isotonic, platt):
        inputs = tf.keras.Input([])
    if make in STATISTICS:
        inputs = tf.keras.Input([WIDTH], dtype="int64")
    tf.keras.Model(inputs, layer(inputs)).save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras").layers[-1]
    assert type(loaded) is type(layer)
    assert_same_bits(variables_of(loaded), variables_of(layer))


@every_kind
def test_a_checkpoint_keeps_every_bit(make, tmp_path):
    layer, _ = make()
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
    other = type(layer).from_config(layer.get_config())
    if make in (max_norm, standardize):
        other.build(None)
    tf.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert_same_bits(variables_of(other), variables_of(layer))


@every_kind
def test_a_saved_model_keeps_every_bit(make, tmp_path):
    layer, _ = make()
    want = variables_of(layer)
    module = tf.Module()
    module.layer = layer
    module.kept = list(want.values())
    if any(not isinstance(v, tf.Variable) for v in module.kept):  # Keras 3 wraps its own
        module.kept = [getattr(v, "value", v) for v in module.kept]
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path)).kept
    assert_same_bits(dict(zip(want, loaded, strict=True)), want)
