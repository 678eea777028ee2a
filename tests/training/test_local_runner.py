"""Training in one process, and the history that it records."""

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.cli.reporter import ConsoleReporter
from twml_ops.data import Schema, open_source
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.reporter import SILENT
from twml_ops.training.runners import LocalRunner, Monitored

CONFIG = RunConfig("", learning_rate=0.1, batch_size=32)


def fit(source, tmp_path, epochs=3, callbacks=(), config=CONFIG, monitored="validation"):
    train, held_out = open_source(source).split()
    monitored = Monitored(held_out, monitored) if monitored else None
    console = Console(file=io.StringIO(), width=120)
    runner = LocalRunner(config, tmp_path / "logs", ConsoleReporter(console))
    model = runner.build(lambda: models.sparse_mlp(train.schema, train.dataset(64), units=4))
    fitted = runner.fit(model, train, monitored, epochs=epochs, callbacks=callbacks)
    return fitted.history, console.file.getvalue()


def test_history_has_every_epoch(libsvm, tmp_path):
    history, shown = fit(libsvm, tmp_path)
    assert [epoch.examples for epoch in history.epochs] == [480, 480, 480]
    assert set(history.epochs[0].metrics) >= {"loss", "auc", "val_loss", "val_auc"}
    assert history.examples == 3 * 480
    assert history.seconds == pytest.approx(sum(epoch.seconds for epoch in history.epochs))
    assert [p.examples for p in history.monitored_loss] == [480, 960, 1440]
    assert [p.loss for p in history.monitored_loss] == [
        epoch.metrics["val_loss"] for epoch in history.epochs
    ]
    examples = [p.examples for p in history.train_loss]
    assert examples == sorted(examples)
    assert examples[-1] == 3 * 480
    assert f"epoch 3/3   train loss {history.epochs[2].metrics['loss']:.4f}" in shown


@pytest.mark.one_tf
@pytest.mark.parametrize("name", ["validation", "evaluation"])
def test_monitored_data_are_called_what_they_are_for(libsvm, tmp_path, name):
    history, shown = fit(libsvm, tmp_path, epochs=1, monitored=name)
    assert history.monitored == name
    assert f"   {name} loss {history.monitored_loss[0].loss:.4f}" in shown


@pytest.mark.one_tf
def test_without_monitored_data_only_the_training_is_recorded(libsvm, tmp_path):
    history, shown = fit(libsvm, tmp_path, epochs=2, monitored=None)
    assert [epoch.examples for epoch in history.epochs] == [480, 480]
    assert history.monitored_loss == []
    assert all(epoch.seconds > 0 for epoch in history.epochs)
    assert "evaluation" not in shown
    assert "validation" not in shown


@pytest.mark.one_tf
def test_monitoring_changes_no_weights(libsvm, tmp_path):
    train, held_out = open_source(libsvm).split()

    def weights(monitored):
        tf.keras.utils.set_random_seed(0)
        runner = LocalRunner(CONFIG, tmp_path / "logs", SILENT)
        model = models.sparse_mlp(train.schema, train.dataset(64), units=4)
        fitted = runner.fit(model, train, monitored, epochs=2)
        return np.concatenate([np.ravel(w) for w in fitted.model.get_weights()])

    np.testing.assert_array_equal(weights(None), weights(Monitored(held_out, "validation")))


@pytest.mark.one_tf
def test_losses_of_weighted_examples_are_weighted_means(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{rng.random():.3f},{rng.integers(2)},{rng.integers(20)}" for _ in range(300)]
    (tmp_path / "a.csv").write_text("x,label,w\n" + "\n".join(lines) + "\n")
    source = open_source(f"csv:{tmp_path}/a.csv", schema=Schema(("x",), (), 0, "", weight="w"))
    train, held_out = source.split()
    runner = LocalRunner(CONFIG, tmp_path / "logs", SILENT)
    model = models.sparse_mlp(train.schema, train.dataset(64), units=4)
    fitted = runner.fit(model, train, Monitored(held_out, "evaluation"), epochs=1)
    want = scoring.metrics(scoring.score(fitted.model, held_out.dataset(64)))
    assert fitted.history.monitored_loss[0].loss == pytest.approx(want["log_loss"], rel=1e-4)


@pytest.mark.one_tf
@pytest.mark.parametrize(("name", "is_weighted"), [("validation", True), ("evaluation", False)])
def test_positives_weigh_more_in_training_and_validation_but_not_in_evaluation(
    libsvm, tmp_path, name, is_weighted
):
    train, held_out = open_source(libsvm).split()
    config = dataclasses.replace(CONFIG, positive_weight=9.0)
    runner = LocalRunner(config, tmp_path / "logs", SILENT)
    model = models.sparse_mlp(train.schema, train.dataset(64), units=4)
    fitted = runner.fit(model, train, Monitored(held_out, name), epochs=2)
    scores = scoring.score(fitted.model, held_out.dataset(64))
    assert scores.predictions.mean() > scores.labels.mean() + 0.1
    if is_weighted:
        scores = scores._replace(weights=1 + 8 * scores.labels)
    want = scoring.metrics(scores)["log_loss"]
    assert fitted.history.monitored_loss[-1].loss == pytest.approx(want, rel=1e-4)


@pytest.mark.one_tf
def test_callbacks_can_stop_the_training_and_restore_the_best_weights(libsvm, tmp_path):
    stop = tf.keras.callbacks.EarlyStopping(
        "val_loss", min_delta=100.0, patience=1, restore_best_weights=True
    )
    history, _ = fit(libsvm, tmp_path, epochs=9, callbacks=[stop])
    assert len(history.epochs) == 2
    assert stop.best_weights is not None


@pytest.mark.one_tf
def test_a_loss_that_is_not_finite_ends_the_training(libsvm, tmp_path):
    config = RunConfig("", optimizer="sgd", learning_rate=1e30, batch_size=32)
    with pytest.raises(UserError, match="the loss became .* epoch 1: try a lower --learning-rate"):
        fit(libsvm, tmp_path, config=config)
