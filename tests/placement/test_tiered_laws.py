"""Laws of tables whose rows are in files, for any sequence of lookups and updates."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_cache import FULLY_ASSOCIATIVE, SetAssociative, hit_rate, in_order
from twml_ops import layers, optimizers
from twml_ops.ops._tape import tf_variable
from twml_ops.placement import placement_of
from twml_ops.placement.tiered import tiered_placement_of

pytestmark = pytest.mark.one_tf  # files are our own; test_tiered.py trains

N, UNITS = 90, 3
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.Momentum(0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "rowwise_adagrad": lambda: optimizers.RowWiseAdagrad(0.1),
    "lazy_adam": lambda: optimizers.LazyAdam(0.01),
    "ftrl": lambda: optimizers.Ftrl(0.1),
}
IDS = st.lists(st.integers(0, N - 1), max_size=16)  # the smallest cache has 16 rows
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["lookup", "prefetch", "update"]), IDS),
        st.tuples(st.sampled_from(["assign", "read"]), st.just([])),
    ),
    max_size=30,
)


class Table:
    """A table with an optimizer, in memory or in a file."""

    def __init__(self, storage, optimizer, kernel_dtype):
        self.layer = layers.SparseLinear(
            UNITS,
            N,
            use_bias=False,
            kernel_initializer=tf.keras.initializers.RandomNormal(seed=1),
            kernel_dtype=kernel_dtype,
            storage=storage,
        )
        self.layer.build(None)
        self.kernel, self.optimizer = self.layer.kernel, optimizer
        optimizer.build([self.kernel])

    def step(self, kind, ids, number):
        """Does one step and returns what can be seen of it."""
        ids = tf.constant(ids, tf.int64, [len(ids)])
        rng = np.random.default_rng(number)
        place = placement_of(self.kernel)
        if kind == "lookup":
            return self.layer(tf.RaggedTensor.from_row_lengths(ids, [len(ids)])).numpy()
        if kind == "update":
            rows = tf.constant(rng.normal(size=[len(ids), UNITS]), tf.float32)
            gradient = tf.IndexedSlices(rows, ids, tf.constant([N, UNITS], tf.int64))
            self.optimizer.apply_gradients([(gradient, self.kernel)])
        elif kind == "assign":
            values = tf.constant(rng.normal(size=[N, UNITS]), tf.float32)
            place.assign(self.kernel, tf.cast(values, tf_variable(self.kernel).dtype))
        elif kind == "read":
            return np.asarray(tf.cast(place.read(self.kernel), tf.float32))
        elif tiered_placement_of(self.kernel) is not None:
            self.layer.prefetch_rows(tf.RaggedTensor.from_row_lengths(ids, [len(ids)]))
        return None

    def slots(self):
        """The slots as whole arrays."""
        place = tiered_placement_of(self.kernel)
        if place is None:
            return [slot.numpy() for slot in self.optimizer.slots_of(self.kernel)]
        rows = place.rows(self.kernel)
        return [rows.read(0, N, i).numpy() for i in range(1, len(rows.variables))]


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=8, deadline=None)
@given(
    steps=STEPS,
    cache_rows=st.sampled_from([1, 17, 40, N]),
    prefetch_rows=st.sampled_from([0, 5, None]),
    policy=st.sampled_from(["lru", "lfu"]),
    direct=st.booleans(),
    io_uring=st.booleans(),
)
def test_any_sequence_of_steps_gives_the_bits_of_a_table_in_memory(
    name, kernel_dtype, steps, cache_rows, prefetch_rows, policy, direct, io_uring
):
    with tempfile.TemporaryDirectory() as folder:
        storage = layers.Tiered(folder, cache_rows, prefetch_rows, policy, direct, io_uring)
        in_memory, in_file = (
            Table(each, OPTIMIZERS[name](), kernel_dtype) for each in (None, storage)
        )
        for number, (kind, ids) in enumerate([*steps, ("read", [])]):
            expected = in_memory.step(kind, ids, number)
            np.testing.assert_array_equal(in_file.step(kind, ids, number), expected)
        for got, expected in zip(in_file.slots(), in_memory.slots(), strict=True):
            np.testing.assert_array_equal(got, expected)


def lookups(count, size, n, seed=0):
    """Ids whose popularity falls with a power."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, n + 1) ** 1.1
    return rng.permutation(n)[rng.choice(n, [count, size], p=weights / weights.sum())]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("cache_rows", [1, 64, 250])
def test_hits_are_those_of_a_simulation_of_the_policy(tmp_path, cache_rows, policy, trained):
    n = 2000
    batches = lookups(60, 16 if cache_rows == 1 else 40, n)
    storage = layers.Tiered(tmp_path, cache_rows, policy=policy)
    layer = layers.SparseLinear(2, n, storage=storage)
    layer.build(None)
    optimizer = optimizers.Adagrad(0.1)
    simulated = SetAssociative(cache_rows, policy)
    hits = 0
    for ids in batches:
        layer.prefetch_rows(tf.constant(ids[None]))
        with tf.GradientTape() as tape:
            y = layer(tf.constant(ids[None]))
        if trained:
            kernel = tf_variable(layer.kernel)
            optimizer.apply_gradients([(tape.gradient(y, kernel), layer.kernel)])
        hits += simulated.lookup(in_order(ids))
    statistics = tiered_placement_of(layer.kernel).statistics(layer.kernel)
    assert statistics.rows == sum(len(np.unique(ids)) for ids in batches)
    assert statistics.rows - statistics.misses == hits
    assert 0 < hits < statistics.rows


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_sets_cost_at_most_two_percent_of_the_hits(policy):
    size, n, warm = 2000, 20_000, 40
    batches = [in_order(ids) for ids in lookups(120, 600, n)]
    with_sets = hit_rate(SetAssociative(size, policy), batches, warm)
    without = hit_rate(FULLY_ASSOCIATIVE[policy](size), batches, warm)
    assert 0.3 < without < 0.9
    assert abs(with_sets - without) < 0.02
