"""A table sharded over replicas trains as a whole one does on the concatenated batch."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.distribute.conftest import copies, ragged_batch, replicas_of
from twml_ops import distribute, layers, optimizers, placement

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


def test_slots_of_shards_are_not_saved(pair):
    sgd = optimizers.Momentum(0.1)
    build(pair, sgd)
    store = {}
    sgd.save_own_variables(store)
    assert not store
    alone = optimizers.Momentum(0.1)
    alone.build([tf.Variable([1.0])])
    alone.save_own_variables(store)
    assert store


def test_formats_and_options_that_need_whole_tables_are_rejected(pair, tmp_path):
    model, _ = build(pair, optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="some of its rows only"):
        tf.train.Checkpoint(model=model).save(str(tmp_path / "c"))
    with pytest.raises(ValueError, match="each replica has only a part of it"):
        build(pair, optimizers.SGD(0.1, global_clipnorm=1.0))
    with pytest.raises(ValueError, match="num_partitions must be 1"):
        layers.SparseLinear(4, 10, num_partitions=2, placement="sharded")
    with pytest.raises(ValueError, match='placement must be "auto", "host", "device" or "sharded"'):
        layers.SparseLinear(4, 10, placement="cpu")
