"""A table sharded over replicas trains as a whole one does on the concatenated batch."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.distribute.conftest import copies, ragged_batch, replicas_of
from tests.pairwise import ONE_TF
from twml_ops import distribute, layers, optimizers, placement
from twml_ops._keras import KERAS_3

N, D, B, STEPS = 203, 6, 16, 3  # N is not divisible by the number of replicas


def build(strategy, optimizer, rows=N):
    draw = tf.keras.initializers.RandomNormal(0, 0.1, seed=1)
    inputs = [tf.keras.Input((None,), dtype=t, ragged=True) for t in ("int64", "float32")]
    with strategy.scope() if strategy else contextlib.nullcontext():
        table = layers.SparseLinear(
            D, rows, kernel_initializer=draw, placement="sharded", name="table"
        )
        model = tf.keras.Model(inputs, table(layers.MaxNorm(rows)(inputs)))
        optimizer.build(model.trainable_variables)
    return model, table


def train(strategy, optimizer):
    model, table = build(strategy, optimizer)

    def replica(ids, values, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model([ids, values], training=True) - labels) ** 2) / B
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    run = tf.function(
        lambda batch: strategy.run(replica, args=batch) if strategy else replica(*batch)
    )
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        batch = ragged_batch(rng, B, N)
        run(replicas_of(strategy, batch) if strategy else batch)
    return model, table


def whole_table(table):
    return placement.placement_of(table.kernel).read(table.kernel).numpy()


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_shards_together_equal_the_whole_table(replicas, tmp_path):
    strategy = distribute.mirrored_strategy(replicas)
    model, table = train(strategy, optimizers.Adagrad(0.1))
    want, _ = train(None, optimizers.Adagrad(0.1))
    np.testing.assert_allclose(
        whole_table(table), want.get_layer("table").kernel, rtol=1e-5, atol=2e-6
    )
    # Each replica holds its own rows only.
    shards = copies(strategy, table.kernel)
    assert {s.shape for s in shards} == {(-(-N // replicas), D)}
    np.testing.assert_array_equal(
        shards[1][: len(whole_table(table)[1::replicas])], whole_table(table)[1::replicas]
    )
    # A file has the whole table and can be loaded with any number of replicas.
    model.save_weights(tmp_path / "m.weights.h5")
    alone, its_table = build(None, optimizers.SGD(0.1))
    alone.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(its_table.kernel.numpy(), whole_table(table))
    again, its_table = build(strategy, optimizers.SGD(0.1))
    again.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(whole_table(its_table), whole_table(table))
    # Outside of the replica context, the layer uses all shards.
    ids, values, _ = ragged_batch(np.random.default_rng(5), 7, N)
    np.testing.assert_allclose(model([ids, values]), alone([ids, values]), rtol=1e-5, atol=1e-6)


def test_only_entries_and_products_are_exchanged(pair):
    traffic = []
    for rows in (1000, 100_000):
        model, _ = build(pair, optimizers.SGD(0.1), rows)
        before = distribute.received_bytes(pair)
        batch = ragged_batch(np.random.default_rng(0), B, 1000)
        pair.run(tf.function(lambda i, v, _, m=model: m([i, v])), args=replicas_of(pair, batch))
        traffic.append(distribute.received_bytes(pair) - before)
    entries = int(tf.size(batch[0].flat_values))
    assert traffic == [entries * (8 + 4) + B * (8 + 4 * D)] * 2


WRAPPERS = {
    "alone": lambda o: o,
    "composite": lambda o: optimizers.CompositeOptimizer(optimizers.SGD(0.1), {"table": o}),
    "loss scale": optimizers.LossScaleOptimizer,
    "loss scale of keras": tf.keras.mixed_precision.LossScaleOptimizer,
}


def fitted(strategy, optimizer, steps=3, **options):
    """A model of one table, trained by `optimizer()` with `fit` on padded batches."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        tf.keras.utils.set_random_seed(1)
        ids = tf.keras.Input([3], dtype="int64")
        table = layers.SparseLinear(D, N, use_bias=False, placement="sharded", name="table")
        model = tf.keras.Model(ids, table(ids))
        model.compile(optimizer(), "mse")
    if steps:
        rng = np.random.default_rng(steps)
        x, y = rng.integers(0, N, (steps * B, 3)), rng.normal(size=(steps * B, D))
        model.fit(x, y.astype(np.float32), batch_size=B, verbose=0, shuffle=False, **options)
    return model


def state_of(model):
    """The whole table and its whole slots, read shard by shard."""
    kernel = model.layers[-1].kernel
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    optimizer = optimizer.optimizer_of(kernel) if hasattr(optimizer, "optimizer_of") else optimizer
    place = placement.placement_of(kernel)
    slots = optimizer.slots_of(kernel)
    return [np.array(place.read(v)) for v in (kernel, *slots)]


@pytest.mark.parametrize(
    ("optimizer", "wrapper"),
    [
        pytest.param(optimizers.LazyAdam, "alone", marks=ONE_TF),
        (optimizers.LazyAdam, "loss scale of keras"),
        pytest.param(optimizers.LazyAdam, "composite", marks=ONE_TF),
        pytest.param(optimizers.LazyAdam, "loss scale", marks=ONE_TF),
        pytest.param(optimizers.RowWiseAdagrad, "alone", marks=ONE_TF),
    ],
)
def test_files_have_whole_tables_and_slots_for_any_number_of_replicas(
    tmp_path, pair, optimizer, wrapper
):
    make = WRAPPERS[wrapper]
    model = fitted(pair, lambda: make(optimizer(0.1)))
    want = state_of(model)
    assert [len(v) for v in want] == [N] * len(want)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    for strategy in (None, pair, distribute.mirrored_strategy(4)):
        with strategy.scope() if strategy else contextlib.nullcontext():
            loaded = tf.keras.models.load_model(tmp_path / "m.keras")
        # Keras 2 has neither slots in these files, nor sets metrics of replicas from them.
        other = fitted(strategy, lambda: make(optimizer(0.1)), steps=1 if KERAS_3 else 0)
        if KERAS_3 or "loss scale" not in wrapper:  # Keras 2 fails where it skips its slots
            other.load_weights(tmp_path / "m.weights.h5")
            np.testing.assert_array_equal(other.get_weights()[0], want[0])
        for again in (loaded, other) if KERAS_3 else (loaded,):
            for got, value in zip(state_of(again), want, strict=True):
                np.testing.assert_array_equal(got, value)


def test_keras_reads_and_writes_whole_tables(pair):
    model = fitted(pair, lambda: optimizers.Adagrad(0.1))
    kernel, (want, slot) = model.layers[-1].kernel, state_of(model)
    np.testing.assert_array_equal(model.get_weights()[0], want)
    np.testing.assert_array_equal(np.asarray(kernel), want)
    assert tuple(kernel.shape) == (N, D)
    assert model.count_params() == N * D
    model.set_weights([2 * want])
    np.testing.assert_array_equal(state_of(model)[0], 2 * want)
    kernel.assign(want)
    for value in (want[:-1], np.vstack([want, want[:1]]), want[:, 1:]):
        with pytest.raises(ValueError, match="shape"):
            kernel.assign(value)
        with pytest.raises(ValueError, match="shape"):
            placement.placement_of(kernel).assign(kernel, value)
    np.testing.assert_array_equal(state_of(model)[0], want)
    np.testing.assert_array_equal(state_of(model)[1], slot)


def test_callbacks_of_keras_keep_and_restore_whole_tables(pair, tmp_path):
    """EarlyStopping keeps weights, ModelCheckpoint and BackupAndRestore files of them."""

    class Worse(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["seen"] = float(epoch)
            if epoch == 0:
                best.extend(state_of(self.model))

    best: list[np.ndarray] = []
    kinds = tf.keras.callbacks
    stop = kinds.EarlyStopping("seen", patience=2, mode="min", restore_best_weights=True)
    keep = kinds.ModelCheckpoint(
        str(tmp_path / "m.weights.h5"), "seen", save_best_only=True, mode="min",
        save_weights_only=True,
    )  # fmt: skip
    model = fitted(pair, lambda: optimizers.Adagrad(0.1), epochs=6, callbacks=[Worse(), keep, stop])
    np.testing.assert_array_equal(state_of(model)[0], best[0])
    alone = fitted(None, lambda: optimizers.Adagrad(0.1), steps=1)
    alone.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(state_of(alone)[0], best[0])
    backup = kinds.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
    if KERAS_3:
        want = state_of(fitted(pair, lambda: optimizers.Adagrad(0.1), callbacks=[backup]))
        backup = kinds.BackupAndRestore(str(tmp_path / "backup"))
        again = fitted(
            pair, lambda: optimizers.Adagrad(0.1), callbacks=[backup]
        )  # has done the epoch
        for got, value in zip(state_of(again), want, strict=True):
            np.testing.assert_array_equal(got, value)


def test_formats_and_options_that_need_whole_tables_are_rejected(pair, tmp_path):
    model, _ = build(pair, optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="some of its rows only"):
        tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    for wrapped in (lambda o: o, WRAPPERS["composite"], optimizers.LossScaleOptimizer):
        optimizer = wrapped(optimizers.Adagrad(0.1))
        build(pair, optimizer)
        with pytest.raises(ValueError, match="some of its rows only"):
            tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "c"))
    with pytest.raises(ValueError, match="each replica has only a part of it"):
        build(pair, optimizers.SGD(0.1, global_clipnorm=1.0))
    with pytest.raises(ValueError, match="num_partitions must be 1"):
        layers.SparseLinear(4, 10, num_partitions=2, placement="sharded")
    with pytest.raises(ValueError, match='placement must be "auto", "host", "device" or "sharded"'):
        layers.SparseLinear(4, 10, placement="cpu")
