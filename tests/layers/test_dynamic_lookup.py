"""`DynamicLookup` and `DynamicSparseLinear`: rows of a bounded table for any ids."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import pairwise
from twml_ops import core, distribute, export, layers, ops, optimizers, placement
from twml_ops._keras import KERAS_3
from twml_ops.ops._tape import tf_variable
from twml_ops.ops.dynamic_lookup import shared_dynamic_lookup
from twml_ops.tpu.table_layers import table_layers

UNITS = 3
IDS = [[7, -5, 7], [], [2**62, 11], [-(2**63)]]


def ragged(rows):
    ids = tf.ragged.constant(rows, ragged_rank=1, dtype=tf.int64)
    return ids, tf.cast(ids.with_values(tf.range(ids.values.shape[0]) % 3 + 1), tf.float32)


def zipf_batches(number=12, rows=16, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        ids = rng.zipf(1.3, (rows, 5)).astype(np.int64) * 7919 - 10**12
        yield tf.RaggedTensor.from_tensor(ids), rng.normal(size=(rows, 1)).astype(np.float32)


def model_of(layer, units=1):
    ids = tf.keras.Input([None], ragged=True, dtype="int64")
    hidden = layer(ids)
    dense = tf.keras.layers.Dense(units, kernel_initializer="ones", name="out")
    return tf.keras.Model(ids, dense(hidden))


def trained(layer, optimizer, batches, **compile_options):
    model = model_of(layer)
    model.compile(optimizer, "mse", **compile_options)
    for x, y in batches:
        model.train_on_batch(x, y)
    return model


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_rows_are_given_in_the_order_of_first_occurrence(wrap):
    layer = layers.DynamicLookup(6)
    ids, values = ragged(IDS)
    rows, kept = wrap(lambda x, v: layer((x, v), training=True))(ids, values)
    assert rows.to_list() == [[1, 2, 1], [], [3, 4], [5]]
    np.testing.assert_array_equal(kept.values, values.values)
    assert layer.num_rows_in_use == 5
    assert wrap(lambda x: layer(x))(ids).to_list() == rows.to_list()


def test_every_batch_form_has_the_same_rows():
    ids, values = ragged([[7, 5, 7], [], [2**40, 11]])
    made = []
    padded = ids.to_tensor(-1), values.to_tensor()
    sparse = tf.SparseTensor([[0, 5], [0, 7], [2, 11]], [1.0, 2, 3], [3, 2**62])
    for batch in ((ids, values), ids, padded, sparse):
        layer = layers.DynamicLookup(9)
        layer(padded, training=True)
        made.append(layer(batch, training=True))
    assert made[0][0].to_list() == made[1].to_list() == [[1, 2, 1], [], [3, 4]]
    np.testing.assert_array_equal(made[2][0], [[1, 2, 1], [-1, -1, -1], [3, 4, -1]])
    np.testing.assert_array_equal(made[3].indices, [[0, 2], [0, 1], [2, 4]])
    assert made[3].shape.as_list() == [3, 9]


def test_shapes_that_are_not_known_stay_open():
    layer = layers.DynamicSparseLinear(UNITS, 8)
    layer(ragged(IDS)[0])
    function = tf.function(layer).get_concrete_function(
        tf.RaggedTensorSpec([None, None], tf.int64), training=True
    )
    assert function.output_shapes.as_list() == [None, UNITS]


@pytest.mark.parametrize("eviction", ["none", "lru", "lfu", "age"])
def test_the_rows_are_those_of_the_core(eviction):
    options = {"min_count": 2, "eviction": eviction, "max_age": 3, "seed": 5}
    layer = layers.DynamicLookup(20, sketch_width=256, **options)
    state = {
        "keys": np.zeros(20, np.int64),
        "last_used": np.zeros(20, np.int64),
        "counts": np.zeros(20, np.int64),
        "index": np.full(64, -1, np.int32),
        "sketch": np.zeros((4, 256), np.uint8),
        "header": np.zeros(4, np.int64),
    }
    for x, _ in zipf_batches():
        rows, _ = core.dynamic_lookup(x.values.numpy(), **state, training=True, **options)
        np.testing.assert_array_equal(layer(x, training=True).values, rows)
    for variable, expected in zip(layer.get_weights(), state.values(), strict=True):
        np.testing.assert_array_equal(variable, expected)


def test_shared_lookups_keep_the_rows_of_new_ids_until_they_have_begun_anew():
    """A row that gets another id meanwhile is kept once, with its last number."""
    base, capacity = 10**18, 12
    alone, shared = (layers.DynamicLookup(capacity) for _ in range(2))
    for layer in (alone, shared):
        layer(tf.zeros([0, 1], tf.int64))
    state, of_shared = ([tf_variable(v) for v in x.weights] for x in (alone, shared))
    new_rows = tf.Variable([[base, base]], shape=[None, 2], dtype=tf.int64)
    kept, begun = {}, base
    for number, (x, _) in enumerate(zipf_batches(rows=4), base + 1):
        ids = x.values[:10]
        want, reset = ops.dynamic_lookup(ids, state, True)
        rows, recent = shared_dynamic_lookup(ids, of_shared, new_rows, base, begun)
        np.testing.assert_array_equal(rows, want)
        kept = {row: given for row, given in kept.items() if given > begun}
        kept |= dict.fromkeys(reset.numpy().tolist(), number)
        assert recent[0].numpy().tolist() == [number, base]
        assert len(recent) == 1 + len(kept)
        assert dict(recent[1:].numpy().tolist()) == kept
        np.testing.assert_array_equal(new_rows, recent)
        begun = number - number % 3
    before = [v.numpy() for v in (*of_shared, new_rows)]
    with pytest.raises(tf.errors.FailedPreconditionError, match="restored since base was read"):
        shared_dynamic_lookup([1, 2], of_shared, new_rows, base + 1, begun)
    for a, b in zip(before, (*of_shared, new_rows), strict=True):
        np.testing.assert_array_equal(a, b)


def test_inference_changes_nothing():
    layer = layers.DynamicSparseLinear(UNITS, 10, min_count=2)
    (x, _), (other, _) = zipf_batches(2)
    layer(x, training=True)
    before = [np.array(w) for w in layer.get_weights()]
    layer(other)
    layer(other, training=False)
    for array, expected in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(array, expected)


OPTIMIZERS = {
    "SGD": lambda: optimizers.SGD(0.1),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "RowWiseAdagrad": lambda: optimizers.RowWiseAdagrad(0.1),
    "LazyAdam": lambda: optimizers.LazyAdam(0.1),
    "clipped": lambda: optimizers.Adagrad(0.1, global_clipnorm=0.5),
}


@pairwise(name=OPTIMIZERS, eagerly=[False, True], kernel_dtype=["float32", "bfloat16"])
def test_with_enough_rows_training_equals_that_of_a_sparse_linear(name, eagerly, kernel_dtype):
    numbers: dict[int, int] = {}
    batches = list(zipf_batches(6))
    for x, _ in batches:
        for i in x.values.numpy():
            numbers.setdefault(int(i), len(numbers) + 1)
    capacity = len(numbers) + 5
    as_rows = [
        (x.with_values(tf.constant([numbers[int(i)] for i in x.values], tf.int64)), y)
        for x, y in batches
    ]
    options = {"kernel_initializer": tf.keras.initializers.RandomUniform(seed=3)}
    options |= {"kernel_dtype": kernel_dtype}
    dynamic = layers.DynamicSparseLinear(UNITS, capacity, **options)
    static = layers.SparseLinear(UNITS, capacity, **options)
    one = trained(dynamic, OPTIMIZERS[name](), batches, run_eagerly=eagerly)
    two = trained(static, OPTIMIZERS[name](), as_rows, run_eagerly=eagerly)
    # A row that gets its first id is one of the initial rows, which row r of fewer than 4,096 is.
    kernel = [tf.cast(layer.kernel, tf.float32) for layer in (dynamic.linear, static)]
    np.testing.assert_array_equal(*kernel)
    np.testing.assert_allclose(one.predict_on_batch(batches[0][0]),
                               two.predict_on_batch(as_rows[0][0]), rtol=1e-5)  # fmt: skip


@pairwise(name=["Adagrad", "LazyAdam"], eagerly=[False, True])
def test_a_new_owner_of_a_row_starts_at_the_initializer_with_fresh_slots(name, eagerly):
    def new(capacity):
        layer = layers.DynamicSparseLinear(UNITS, capacity, kernel_initializer="zeros")
        return layer, OPTIMIZERS[name]()

    x = [tf.ragged.constant([[i]], dtype=tf.int64) for i in (5, 6, 7)]
    y = np.ones((1, 1), np.float32)
    layer, optimizer = new(3)
    trained(layer, optimizer, [(x[0], y), (x[0], y), (x[1], y), (x[2], y)], run_eagerly=eagerly)
    kernel = np.array(layer.linear.kernel)
    slots = [np.array(s) for s in optimizer.slots_of(layer.linear.kernel)]
    # 7 has the row of 5, which was used least recently. Its row had one update, like that of 6.
    assert layer(x[2]).shape == (1, UNITS)
    other, other_optimizer = new(9)
    trained(other, other_optimizer, [(x[0], y), (x[0], y), (x[1], y), (x[2], y)])
    np.testing.assert_array_equal(kernel[1], np.array(other.linear.kernel)[3])
    for slot, expected in zip(slots, other_optimizer.slots_of(other.linear.kernel), strict=True):
        np.testing.assert_array_equal(slot[1], expected[3])
    assert not np.array(layer._stale_slots).any()


def test_no_row_of_the_current_batch_is_evicted():
    layer = layers.DynamicLookup(4)
    rows = layer(tf.ragged.constant([[1, 2, 3, 4, 5]], dtype=tf.int64), training=True)
    assert rows.to_list() == [[1, 2, 3, 0, 0]]
    rows = layer(tf.ragged.constant([[2, 8, 9, 6]], dtype=tf.int64), training=True)
    assert rows.to_list() == [[2, 1, 3, 0]]


def test_pinned_lookups_keep_rows_of_earlier_calls():
    layer = layers.DynamicLookup(3, pinned_lookups=2)
    expected = [[1, 2], [0, 0], [1, 2]]
    for ids, rows in zip([[1, 2], [3, 4], [5, 6]], expected, strict=True):
        got = layer(tf.ragged.constant([ids], dtype=tf.int64), training=True)
        assert got.to_list() == [rows]


def test_a_loaded_model_goes_on_bit_for_bit(tmp_path):
    batches = list(zipf_batches())

    def layer():
        return layers.DynamicSparseLinear(UNITS, 12, min_count=2, name="dynamic")

    model = trained(layer(), optimizers.Adagrad(0.1), batches[:6])
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    for x, y in batches[6:]:
        model.train_on_batch(x, y)
        loaded.train_on_batch(x, y)
    for array, expected in zip(loaded.get_weights()[:-2], model.get_weights()[:-2], strict=True):
        np.testing.assert_array_equal(array, expected)
    assert loaded.get_layer("dynamic").lookup.num_rows_in_use == 11


def test_a_checkpoint_keeps_the_state(tmp_path):
    (x, y), *_ = zipf_batches()
    model = trained(layers.DynamicSparseLinear(UNITS, 12), optimizers.Adagrad(0.1), [(x, y)])
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    other = model_of(layers.DynamicSparseLinear(UNITS, 12))
    tf.train.Checkpoint(model=other).restore(path).expect_partial()
    np.testing.assert_array_equal(other.predict_on_batch(x), model.predict_on_batch(x))


def test_exports_look_up_rows(tmp_path):
    layer = layers.DynamicSparseLinear(UNITS, 12)
    for x, _ in zipf_batches(4):
        layer(x, training=True)
    ids = tf.keras.Input([None], dtype="int64", name="ids")
    model = tf.keras.Model(ids, layer(ids))
    unknown = tf.constant([[1, 2**61, -1, -(2**63), 5]], tf.int64)
    padded = tf.concat([x.to_tensor(), unknown], axis=0)
    expected = model.predict_on_batch(padded)
    for name, save in (("fast", export.to_tf), ("stock", export.to_stock_tf)):
        save(model, str(tmp_path / name))
        serve = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        (got,) = serve(ids=padded).values()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_replicas_and_graphs_of_version_1_are_refused():
    strategy = distribute.mirrored_strategy(2)
    layer = layers.DynamicLookup(4)
    layer(tf.ragged.constant([[1]], dtype=tf.int64))
    with pytest.raises(ValueError, match="without replicas, got 2"), strategy.scope():
        layer(tf.ragged.constant([[1]], dtype=tf.int64), training=True)
    with tf.Graph().as_default(), pytest.raises(NotImplementedError, match="version 1"):
        layer(tf.ragged.constant([[1]], dtype=tf.int64), training=True)


def test_tables_on_tpus_and_with_other_placements_are_refused():
    with (
        placement.placement_scope(placement.Placement()),
        pytest.raises(ValueError, match="table cannot be on TPUs"),
    ):
        layers.DynamicSparseLinear(2, 4)(tf.ragged.constant([[1]], dtype=tf.int64))
    model = model_of(layers.DynamicSparseLinear(2, 4))
    with pytest.raises(ValueError, match="cannot be trained on TPUs"):
        table_layers(model)


def test_mixed_precision_changes_only_the_output():
    (x, _), *_ = zipf_batches(1)
    options = {"kernel_initializer": tf.keras.initializers.RandomUniform(seed=3)}
    wide = layers.DynamicSparseLinear(UNITS, 90, **options)
    mixed = layers.DynamicSparseLinear(UNITS, 90, dtype="mixed_float16", **options)
    expected, got = wide(x, training=True), mixed(x, training=True)
    assert got.dtype == tf.float16
    assert mixed.linear.kernel.dtype == "float32"
    np.testing.assert_array_equal(got, tf.cast(expected, tf.float16))


@pytest.mark.parametrize("eagerly", [False, True])
def test_two_lookups_in_a_step_never_share_a_row(eagerly):
    layer = layers.DynamicSparseLinear(UNITS, 2, use_bias=False)
    one, two = (tf.keras.Input([None], ragged=True, dtype="int64") for _ in range(2))
    outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()([layer(one), layer(two)]))
    model = tf.keras.Model([one, two], outputs)
    model.compile(optimizers.Adagrad(0.1), "mse", run_eagerly=eagerly)
    x = [tf.ragged.constant([[i]], dtype=tf.int64) for i in (5, 6, 7)]
    y = np.ones((1, 1), np.float32)
    model.train_on_batch(x[:2], y)
    assert [layer.lookup(i).to_list() for i in x] == [[[1]], [[0]], [[0]]]
    model.train_on_batch([x[2], x[2]], y)  # the update has released the row
    assert [layer.lookup(i).to_list() for i in x] == [[[0]], [[0]], [[1]]]


def test_without_updates_of_the_kernel_by_our_optimizers_no_row_gets_a_new_id():
    batches = list(zipf_batches(4))
    for optimizer, frozen in ((tf.keras.optimizers.Adagrad(0.1), False), ("sgd", True)):
        layer = layers.DynamicSparseLinear(UNITS, 4)
        layer.trainable = not frozen  # then there is no gradient that could wait
        model = trained(layer, optimizer, batches[:1])
        keys = np.array(layer.lookup.get_weights()[0])
        for x, y in batches[1:]:
            model.train_on_batch(x, y)
        assert (keys == np.array(layer.lookup.get_weights()[0])).all() != frozen


@pytest.mark.skipif(not KERAS_3, reason="an option of Keras 3")
def test_accumulated_gradients_reach_the_ids_that_they_are_of():
    y = np.ones((1, 1), np.float32)
    batches = [(tf.ragged.constant([[i]], dtype=tf.int64), y) for i in (5, 6, 7, 8)]
    rows = []
    for capacity in (3, 9):  # 7 and 8 get the rows of 5 and 6, or rows of their own
        layer = layers.DynamicSparseLinear(
            UNITS, capacity, use_bias=False, kernel_initializer="zeros"
        )
        trained(layer, optimizers.Adagrad(0.1, gradient_accumulation_steps=2), batches)
        of_last_two = slice(1, 3) if capacity == 3 else slice(3, 5)
        rows.append(np.array(layer.linear.kernel)[of_last_two])
    assert (rows[0] != 0).all()
    np.testing.assert_array_equal(*rows)
    # 6 came while the gradient of 5 waited for its update, so it did not get the only row.
    small = layers.DynamicSparseLinear(UNITS, 2)
    trained(small, optimizers.Adagrad(0.1, gradient_accumulation_steps=2), batches[:2])
    assert small.lookup(batches[0][0]).to_list() == [[1]]
    assert small.lookup(batches[1][0]).to_list() == [[0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 1}, "capacity must be in"),
        ({"capacity": 2**31}, "capacity must be in"),
        ({"capacity": 4, "min_count": 256}, "min_count must be in"),
        ({"capacity": 4, "eviction": "fifo"}, "eviction must be one of"),
        ({"capacity": 4, "max_age": -1}, "max_age must be"),
        ({"capacity": 4, "pinned_lookups": 0}, "pinned_lookups must be"),
        ({"capacity": 4, "sketch_width": 12}, "sketch_width must be"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.DynamicLookup(**arguments)


def test_the_kernel_is_on_the_host():
    layer = layers.DynamicSparseLinear(2, 4)
    layer(tf.ragged.constant([[1]], dtype=tf.int64))
    assert "CPU" in tf_variable(layer.linear.kernel).device
