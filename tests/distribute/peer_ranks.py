"""The laws of `PeerAveraging` that every rank checks; test_peer_averaging.py starts the ranks."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import calculations
from tests.peers.ranks import run
from twml_ops import distribute, layers, optimizers
from twml_ops.ops._tape import tf_variable

ROWS, WIDTH, BATCH, EVERY = 300, 4, 8, 2
LAWS = {}


def law(function):
    LAWS[function.__name__] = function
    return function


def make_model(seed, eager=True):
    """A small model; eager, because tracing takes longer than its few steps."""
    tf.keras.utils.set_random_seed(seed)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    normal = layers.MaxNorm(ROWS)(inputs)
    hidden = layers.SparseLinear(WIDTH, ROWS, activation="relu")(normal)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizers.Adagrad(0.1), "binary_crossentropy", run_eagerly=eager)
    return model


def batches(rank, count):
    rng = np.random.default_rng(rank)
    splits = np.arange(0, BATCH * 5 + 1, 5)
    for _ in range(count):
        flat = [rng.integers(0, ROWS, BATCH * 5), rng.normal(size=BATCH * 5).astype(np.float32)]
        inputs = tuple(tf.RaggedTensor.from_row_splits(f, splits) for f in flat)
        yield inputs, rng.integers(0, 2, BATCH).astype(np.float32)


def dataset(rank, count):
    every = list(batches(rank, count))
    inputs = [tf.concat([x[i] for x, _ in every], 0) for i in range(2)]
    labels = np.concatenate([y for _, y in every])
    return tf.data.Dataset.from_tensor_slices((tuple(inputs), labels)).batch(BATCH)


def fit(group, counts, epochs=1, seed=None, eager=True, **options):
    model = make_model(group.rank if seed is None else seed, eager)
    callback = distribute.PeerAveraging(group, every=EVERY, **options)
    data = dataset(group.rank, counts[group.rank % len(counts)])
    model.fit(data, epochs=epochs, callbacks=[callback], verbose=0, shuffle=False)
    return model, callback


def weights_of(model):
    return [np.array(tf_variable(w).numpy()) for w in model.weights]


def all_equal(group, model):
    for w in weights_of(model):
        of_first = w.copy()
        group.broadcast(of_first)
        np.testing.assert_array_equal(w, of_first)


@law
def test_one_rank_trains_like_keras_bit_for_bit(group):
    if group.size > 1:
        return
    plain = make_model(3, eager=False)
    plain.fit(dataset(0, 5), epochs=2, verbose=0, shuffle=False)
    model, callback = fit(group, [5], epochs=2, seed=3, eager=False)
    assert callback.counts is None
    for got, want in zip(weights_of(model), weights_of(plain), strict=True):
        np.testing.assert_array_equal(got, want)


def reference(group, counts, what):
    """Trains the models of all ranks in this process and merges them with NumPy."""
    models = [make_model(0) for _ in range(group.size)]
    base = [w.copy() for w in weights_of(models[0])]
    data = [list(batches(r, counts[r])) for r in range(group.size)]
    for step in range(max(counts)):
        for rank, model in enumerate(models):
            if step < counts[rank]:
                model.train_on_batch(*data[rank][step])
        if (step + 1) % EVERY:
            continue
        values = [weights_of(m) for m in models]
        for i, before in enumerate(base):
            is_maxima = not models[0].weights[i].trainable
            as_difference = what == "gradients" and not is_maxima
            news = [v[i] - before if as_difference else v[i] for v in values]
            if is_maxima:
                base[i] = np.maximum.reduce(news)
                continue
            total, number = np.zeros_like(before), np.zeros(before.shape, np.float32)
            for rank, new in enumerate(news):
                sent = np.ones(before.shape, bool)
                if before.shape == (ROWS, WIDTH):
                    since = data[rank][step - EVERY + 1 : step + 1]
                    ids = np.concatenate([x[0].flat_values for x, _ in since])
                    sent[np.setdiff1d(np.arange(ROWS), ids)] = False
                total[sent] += new[sent]
                number += sent
            mean = total / np.maximum(number, 1)
            base[i] = np.where(number > 0, before + mean if what == "gradients" else mean, before)
        for model in models:
            for variable, value in zip(model.weights, base, strict=True):
                tf_variable(variable).assign(value)
    return base


@law
def test_bsp_equals_one_process_that_merges_the_models_of_all_ranks(group):
    if group.size == 1:
        return
    counts = [4] * group.size
    for what in ("weights", "gradients"):
        model, callback = fit(group, counts, what=what)
        all_equal(group, model)
        for got, want in zip(weights_of(model), reference(group, counts, what), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert callback.counts.overwritten == callback.counts.missed == 0


@law
def test_ranks_with_different_numbers_of_batches_end_with_the_same_weights(group):
    if group.size == 1:
        return
    for options in ({}, {"consistency": "async"}, {"consistency": "ssp", "staleness": 1}):
        model, _ = fit(group, [3, 6], epochs=2, max_rows=ROWS, **options)
        if not options:
            all_equal(group, model)
            continue
        # Rows in messages that were overwritten differ.
        for dense in (w for w in weights_of(model) if w.shape != (ROWS, WIDTH)):
            of_first = dense.copy()
            group.broadcast(of_first)
            np.testing.assert_array_equal(dense, of_first)


@law
def test_a_fit_of_each_epoch_ends_with_the_average_of_what_callbacks_have_left(group):
    class Shift(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            for weight in self.model.trainable_variables:
                weight.assign(weight + float(group.rank))

    if group.size == 1:
        return
    for consistency in ("bsp", "ssp"):
        model, epochs = make_model(0), 2
        averaging = distribute.PeerAveraging(
            group, every=EVERY, consistency=consistency, each_epoch=True
        )
        for epoch in range(epochs):
            data = dataset(group.rank, 3 + group.rank)
            model.fit(
                data,
                initial_epoch=epoch,
                epochs=epoch + 1,
                callbacks=[averaging, Shift()],
                verbose=0,
                shuffle=False,
            )
            all_equal(group, model)
        channel = averaging.channel
        again = distribute.PeerAveraging(
            group, every=EVERY, consistency=consistency, channel=channel
        )
        model.fit(dataset(group.rank, 2), callbacks=[again], verbose=0, shuffle=False)
        assert again.channel is channel
        assert channel.is_closed


@law
def test_numbers_of_steps_are_the_recorded_ones(group):
    close = {}
    for options in ({}, {"what": "gradients"}, {"wire_dtype": "bfloat16"}):
        model, _ = fit(group, [4], seed=3, max_rows=ROWS, **options)
        close |= {f"{options} {i}": w for i, w in enumerate(weights_of(model))}
    if group.rank == 0:
        calculations.check(f"peers_{group.size}", {}, close)


@law
def test_messages_have_the_rows_that_changed(group):
    if group.size == 1:
        return
    _, few = fit(group, [2])
    _, half = fit(group, [2], wire_dtype="bfloat16")
    whole = (ROWS * WIDTH + ROWS) * 4
    touched = len(np.unique(np.concatenate([x[0].flat_values for x, _ in batches(group.rank, 2)])))
    assert few.counts.scatters == 2
    assert touched < ROWS / 3
    assert few.counts.sent_bytes < 2 * whole
    assert half.counts.sent_bytes < 0.7 * few.counts.sent_bytes


@law
def test_all_ranks_begin_with_the_weights_of_root(group):
    root = group.size - 1
    model = make_model(group.rank)
    callback = distribute.PeerAveraging(group, root=root)
    callback.set_model(model)
    callback.on_train_begin()
    for got, want in zip(weights_of(model), weights_of(make_model(root)), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match=r"root must be in \[0, [12]\), got 2"):
        distribute.PeerAveraging(group, root=2)


if __name__ == "__main__":
    run(LAWS, *sys.argv[1:], ())
