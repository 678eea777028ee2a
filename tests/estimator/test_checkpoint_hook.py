"""Checkpoints of an estimator: what was continued has the bits of what was not stopped."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers
from twml_ops.checkpoint import CheckpointError, CheckpointManager, TablePolicy

if not hasattr(tf, "estimator"):
    pytest.skip("TensorFlow has no tf.estimator", allow_module_level=True)

estimator = importlib.import_module("twml_ops.estimator")
N, STEPS = 40, 9


def batches():
    rng = np.random.default_rng(1)
    ids = rng.integers(0, N, [STEPS, 8, 3])
    labels = (ids.sum(axis=2, keepdims=True) % 2).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"ids": ids}, labels))


def builder(units=4):
    def build():
        linear = layers.SparseLinear(units, N, kernel_initializer=initializer(1))
        out = tf.keras.layers.Dense(1, "sigmoid", kernel_initializer=initializer(2))
        return lambda features, training: out(linear(features["ids"]))

    return build


def initializer(seed):
    return tf.keras.initializers.RandomNormal(seed=seed)


def trained(folder, policy=None, max_steps=STEPS, units=4, every=2, values=None):
    """The variables after training with a hook, or without one if there is no policy."""
    model_fn = estimator.make_model_fn(builder(units), optimizers.LazyAdam(0.1))
    made = tf.estimator.Estimator(model_fn, str(folder / f"model-{max_steps}"))
    hooks, start = [], 0
    if policy:
        manager = CheckpointManager(folder / "saved", keep=9, tables=TablePolicy(policy))
        hooks = [estimator.CheckpointHook(manager, every_steps=every, values=values)]
        start = hooks[0].saved_step
    made.train(lambda: batches().skip(start), max_steps=max_steps, hooks=hooks)
    return {name: made.get_variable_value(name).tobytes() for name in made.get_variable_names()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("policy", ["full", "consecutive"])
def test_a_continued_training_has_the_bits_of_an_undisturbed_one(tmp_path, undisturbed, policy):
    trained(tmp_path, policy, max_steps=5)
    saved = CheckpointManager(tmp_path / "saved").all()
    assert [c.manifest.step for c in saved] == [2, 4, 5]
    changed = [c.manifest.base is not None for c in saved]
    assert changed == ([False] * 3 if policy == "full" else [False, True, True])
    # Another folder of the estimator: all that it knows is in the checkpoint.
    assert trained(tmp_path, policy) == undisturbed
    if policy == "consecutive":
        table = next(e for e in saved[1].entries.values() if e.shape == (N, 4))
        assert 0 < table.details["rows"] < N


def test_a_training_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, undisturbed):
    trained(tmp_path, "full", max_steps=5)
    data = CheckpointManager(tmp_path / "saved").latest().folder / "data-00000"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="the older .*-step-4 is used instead"):
        assert trained(tmp_path, "full") == undisturbed


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    trained(tmp_path, "full", max_steps=3, values={"data": "a.csv"})
    with pytest.raises(
        CheckpointError, match="was written by a training with data = 'a.csv', got 'b.csv'"
    ):
        trained(tmp_path, "full", values={"data": "b.csv"})


def test_the_hook_changes_nothing(tmp_path, undisturbed):
    assert trained(tmp_path, "one-shot") == undisturbed


def test_another_model_is_refused(tmp_path):
    trained(tmp_path, "full", max_steps=2)
    with pytest.raises(CheckpointError, match="is a checkpoint of another model or optimizer"):
        trained(tmp_path, "full", max_steps=3, units=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "every_steps or every_seconds"), ({"every_steps": 0}, "every_steps must be positive")],
)
def test_wrong_options_are_errors(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        estimator.CheckpointHook(CheckpointManager(tmp_path), **options)
