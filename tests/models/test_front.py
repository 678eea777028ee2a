"""Models whose layers without weights are computed once."""

import numpy as np
import pytest
import tensorflow as tf

from tests.trained_runs import write_criteo
from twml_ops import models
from twml_ops.data import InputPosition, open_source
from twml_ops.models import front as front_module
from twml_ops.training.config import RunConfig
from twml_ops.training.reporter import SILENT
from twml_ops.training.runners import LocalRunner, Monitored

OPTIONS = {"units": 2, "hidden": (3,), "dropout": 0.0, "embedding_dropout": 0.0, "crosses": []}
CONFIG = RunConfig("", learning_rate=0.05, batch_size=64)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "criteo.tsv"
    write_criteo(path, 400)
    return open_source(f"criteo:{path}")


def dcn_of(source):
    tf.keras.utils.set_random_seed(0)
    return models.dcn(source.schema, source.dataset(128, layout="keyed_fields"), **OPTIONS)


@pytest.fixture(scope="module")
def model(source):
    return dcn_of(source)


@pytest.mark.parametrize("training", [False, True])
def test_both_parts_compute_what_the_whole_does(source, model, training):
    front = models.divided(model)
    assert {type(layer).__name__ for layer in front.rest.layers}.isdisjoint(
        {"TargetStatistics", "CountStatistics", "CategoryRows", "FieldQuantiles", "BoostedTrees"}
    )
    batches = models.batches_of(front.of(source, training, 100))
    assert len(batches) == 4
    whole = source.dataset(100, layout="keyed_fields")
    for (features, y), (tensors, labels) in zip(whole, batches, strict=True):
        np.testing.assert_array_equal(y, labels)
        expected = model({name: features[name] for name in model.input}, training=training)
        np.testing.assert_allclose(front.rest(tensors, training=training), expected, rtol=1e-5)


def test_row_keys_are_replaced_in_any_order(source, model):
    front = models.divided(model)
    look_up = front_module.keyed_batches(front.of(source, True, 400))
    at = {"shuffle": True, "seed": 3}
    keyed = look_up(source.dataset(64, layout="row_keys", **at))
    for (features, y), (tensors, labels) in zip(
        source.dataset(64, layout="keyed_fields", **at), keyed, strict=True
    ):
        np.testing.assert_array_equal(y, labels)
        expected = model({name: features[name] for name in model.input}, training=True)
        np.testing.assert_allclose(front.rest(tensors, training=True), expected, rtol=1e-5)


def test_batches_do_not_depend_on_how_many_are_looked_up_at_once(source, model):
    look_up = front_module.keyed_batches(models.divided(model).of(source, True, 400))
    position = InputPosition(3, 1, 64)  # in the second epoch, after a batch

    def batches(at_once, **at):
        at = {"shuffle": True, "seed": 3, "layout": "row_keys", **at}
        return look_up(source.dataset(at_once * 64, **at))

    for at in ({}, {"position": position}):
        count = None if at else 7
        cut = models.in_batches(batches(4, **at), 64, count)
        assert count is None or len(cut) == count
        for _ in range(2):  # the next iteration is the next epoch
            single, divided = list(batches(1, **at)), list(cut)
            assert len(single) == len(divided)
            for mine, theirs in zip(tf.nest.flatten(single), tf.nest.flatten(divided), strict=True):
                np.testing.assert_array_equal(mine, theirs)
            at = {"position": InputPosition(3, 2 if at else 1)}


@pytest.mark.one_tf
def test_a_training_does_not_depend_on_whether_tensors_are_kept(source, monkeypatch):
    train, held_out = source.split()

    def fitted(most):
        monkeypatch.setattr(front_module, "MAX_BYTES", most)
        runner = LocalRunner(CONFIG, None, SILENT)
        found = runner.fit(dcn_of(train), train, Monitored(held_out, "validation"), epochs=2)
        epochs = [epoch.metrics for epoch in found.history.epochs]
        return [m[name] for m in epochs for name in ("loss", "val_loss")], found.model

    (kept, model), (read, other) = fitted(1 << 29), fitted(0)
    np.testing.assert_allclose(kept, read, rtol=1e-4)
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-4)


def test_models_without_row_keys_are_not_divided():
    x = tf.keras.Input((2,), name="continuous")
    assert models.divided(tf.keras.Model({"continuous": x}, tf.keras.layers.Dense(1)(x))) is None
