"""The optimizers by name."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops.layers import SparseLinear
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.model import (
    for_trial,
    learning_rate_of,
    make_optimizer,
    optimizer_names,
    with_batch_size,
)


@pytest.mark.parametrize("name", on_both(optimizer_names(), "lazy_adam"))
def test_every_optimizer_learns_at_its_own_rate(name):
    ids = np.arange(3200, dtype=np.int64)[:, None] % 8  # 100 batches
    labels = (ids < 4).astype(np.float32)
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input((1,), dtype="int64")
    outputs = SparseLinear(1, 8, activation="sigmoid")(inputs)
    model = tf.keras.Model(inputs, outputs)
    optimizer = make_optimizer(name, learning_rate_of(name), steps=100)
    model.compile(optimizer, "binary_crossentropy", jit_compile=False)
    before = model.evaluate(ids, labels, verbose=0)
    model.fit(ids, labels, batch_size=32, verbose=0)
    assert model.evaluate(ids, labels, verbose=0) < before - 0.01


def test_unknown_name_is_an_error_that_lists_the_names():
    with pytest.raises(UserError, match="'nosuch': expected one of adagrad"):
        learning_rate_of("nosuch")


@pytest.mark.parametrize(
    ("examples", "size"),
    [(0, 256), (51_199, 256), (51_200, 512), (102_399, 512), (102_400, 1024), (10**9, 1024)],
)
def test_the_batches_of_dcn_grow_with_the_data_as_long_as_an_epoch_has_100_steps(examples, size):
    config = with_batch_size(RunConfig("", model="dcn", learning_rate=0.02), examples, True)
    assert config.batch_size == size
    assert config.learning_rate == pytest.approx(0.02 * (size / 256) ** 0.5)
    given = with_batch_size(RunConfig("", model="dcn", learning_rate=0.02), examples, False)
    assert (given.batch_size, given.learning_rate) == (size, 0.02)


@pytest.mark.parametrize(
    "options",
    [{"model": "deepfm"}, {"model": "auto"}, {"optimizer": "lazy_adam"}, {"from_run": "run"}],
)
def test_what_was_not_measured_has_the_same_batches_for_all_data(options):
    config = RunConfig("", **{"model": "dcn", "learning_rate": 0.02, **options})
    config = with_batch_size(config, 10**9, True)
    assert (config.batch_size, config.learning_rate) == (256, 0.02)


def test_the_batches_of_the_second_model_grow_as_well():
    config = RunConfig("", model="deepfm", learning_rate=0.2)
    assert with_batch_size(config, 10**9, True, second=True).batch_size == 1024
    assert with_batch_size(config, 10**9, True).batch_size == 256


def test_a_batch_size_that_is_given_stays():
    config = RunConfig("", model="dcn", batch_size=64)
    assert with_batch_size(config, 10**9, True) == config


def test_a_model_that_only_chooses_has_all_ensembles_of_trees_if_there_are_few_examples():
    config = RunConfig("", model="dcn")
    assert for_trial(config, 49_999) == config


def test_a_model_that_only_chooses_has_one_ensemble_of_trees_unless_told_otherwise():
    for model in ("dcn", "deepfm"):
        config = RunConfig("", model=model, model_options={"units": 4})
        assert for_trial(config, 50_000).model_options == {"units": 4, "tree_ensembles": 1}
    for same in (
        RunConfig("", model="dcn", model_options={"tree_ensembles": 2}),
        RunConfig("", model="dcn", refit=False),
        RunConfig("", model="fm"),
    ):
        assert for_trial(same, 50_000) == same
