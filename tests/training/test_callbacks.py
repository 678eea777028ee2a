"""Averaged weights and early stopping, in `fit` of Keras."""

import math

import numpy as np
import pytest
import tensorflow as tf

from twml_ops.layers import SparseLinear
from twml_ops.optimizers import SGD
from twml_ops.training.callbacks import SNAPSHOTS, EarlyStopping, WeightAveraging
from twml_ops.training.errors import UserError

ROWS, BATCH = 64, 2
STEPS = ROWS // BATCH


def make_model(kernel_dtype="float32"):
    tf.keras.utils.set_random_seed(0)
    ids = tf.keras.Input([3], dtype="int64")
    values = tf.keras.Input([3])
    hidden = SparseLinear(4, 10, kernel_dtype=kernel_dtype)((ids, values))
    model = tf.keras.Model([ids, values], tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(SGD(0.5), "binary_crossentropy", jit_compile=False)
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 10, (ROWS, 3))
    values = rng.normal(size=(ROWS, 3)).astype("f")
    labels = (rng.random((ROWS, 1)) < 0.5).astype("f")
    return [ids, values], labels


class Recorder(tf.keras.callbacks.Callback):
    """Keeps the trainable weights after every step, and those with which the model is evaluated."""

    def __init__(self):
        super().__init__()
        self.steps, self.evaluated = [], []

    def _weights(self):
        return [tf.convert_to_tensor(w).numpy() for w in self.model.trainable_variables]

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(self._weights())

    def on_test_end(self, logs=None):
        self.evaluated.append(self._weights())


def assert_close(actual, desired):
    for a, b in zip(actual, desired, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_an_epoch_ends_with_the_mean_of_snapshots_of_its_second_half(data):
    model, recorder = make_model(), Recorder()
    callbacks = [recorder, WeightAveraging(STEPS)]
    model.fit(*data, BATCH, 1, shuffle=False, verbose=0, callbacks=callbacks)
    distance = STEPS // 2 // SNAPSHOTS
    snapshots = recorder.steps[STEPS // 2 + distance - 1 :: distance]
    assert len(snapshots) == SNAPSHOTS
    mean = [np.mean(w, axis=0) for w in zip(*snapshots, strict=True)]
    assert_close([tf.convert_to_tensor(w) for w in model.trainable_variables], mean)
    assert np.abs(mean[0] - recorder.steps[-1][0]).max() > 1e-4


def test_the_average_is_evaluated_and_the_next_epoch_continues_from_it(data):
    model, recorder = make_model(), Recorder()
    callbacks = [WeightAveraging(STEPS), recorder]
    model.fit(*data, BATCH, 2, False, callbacks, validation_data=data, shuffle=False)
    last = [tf.convert_to_tensor(w).numpy() for w in model.trainable_variables]
    assert_close(recorder.evaluated[1], last)
    alone = make_model()
    alone.set_weights(recorder.evaluated[0])
    features, labels = data
    alone.train_on_batch([x[:BATCH] for x in features], labels[:BATCH])
    assert_close(alone.get_weights(), recorder.steps[STEPS])


def test_an_epoch_of_one_step_keeps_its_weights(data):
    plain, averaged = make_model(), make_model()
    plain.fit(*data, ROWS, 3, shuffle=False, verbose=0)
    averaged.fit(*data, ROWS, 3, shuffle=False, verbose=0, callbacks=[WeightAveraging(1)])
    assert_close(averaged.get_weights(), plain.get_weights())


def test_the_average_of_a_bfloat16_table_is_computed_in_float32(data):
    model, recorder = make_model("bfloat16"), Recorder()
    model.fit(*data, BATCH, 1, shuffle=False, verbose=0, callbacks=[recorder, WeightAveraging(2)])
    table = tf.convert_to_tensor(model.trainable_variables[0])
    assert table.dtype == "bfloat16"


class Losses(tf.keras.callbacks.Callback):
    """Sets the weights and the loss on the validation data of each epoch."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = self.losses[epoch]
        self.model.set_weights([np.full_like(w, epoch + 1) for w in self.model.get_weights()])


def stop(data, losses, patience, restore, target=None):
    model, stopping = make_model(), EarlyStopping(patience, restore, target)
    callbacks = [Losses(losses), stopping]
    epochs = len(model.fit(*data, ROWS, len(losses), verbose=0, callbacks=callbacks).epoch)
    return epochs, stopping, float(np.ravel(model.get_weights()[0])[0])


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([5, 4, 3, 2], 1, 4, 4),
        ([5, 4, 6, 3], 1, 3, 2),
        ([5, 4, 6, 3], 2, 4, 4),
        ([5, 4, 4, 4, 4], 2, 4, 2),
        ([math.nan, 4, 5, math.nan], 2, 4, 2),
    ],
)
def test_training_stops_after_epochs_without_a_lower_loss(data, losses, patience, epochs, best):
    ran, stopping, weight = stop(data, losses, patience, restore=True)
    assert ran == epochs
    assert (stopping.best_epoch, stopping.best_loss) == (best, losses[best - 1])
    assert weight == best


@pytest.mark.parametrize(
    ("losses", "target", "epochs"),
    [
        ([9, 8, 7, 6, 5, 4], 4, 6),
        ([9, 8, 7, 6, 5, 4], 3, 3),
        ([9, 5, 4, 3.5, 3, 2.5], 0, 4),  # the larger one of two gains counts
        ([9, 10, 8, 9], math.inf, 4),
    ],
)
def test_training_stops_when_its_gains_cannot_reach_the_loss_of_another_model(
    data, losses, target, epochs
):
    assert stop(data, losses, 2, restore=False, target=target)[0] == epochs


def test_without_restoring_the_last_weights_remain(data):
    assert stop(data, [5, 4, 6, 7], 2, restore=False)[2] == 4


def test_a_loss_that_is_never_finite_is_an_error(data):
    with pytest.raises(UserError, match="not finite: try a lower --learning-rate"):
        stop(data, [math.nan, math.inf], 5, restore=True)
