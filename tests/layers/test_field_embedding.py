"""`FieldEmbedding` against lookups one by one, its update against dense training, and its files."""

import contextlib
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import distribute, export, layers, ops, optimizers
from twml_ops._keras import KERAS_3
from twml_ops.ops import stock
from twml_ops.ops._library import library as active

ROWS = [5, 3, 9]
IDS = np.array([[0, -1, 7], [3, 5, -9], [4, 2**61 + 1, 8], [0, 0, 0]])
BAG = [[1, 6], [], [2, 2, -1], [11]]
WEIGHTS = [[0.5, 2.0], [], [1.0, 3.0, -1.0], [4.0]]
field_embedding = partial(layers.FieldEmbedding, out_of_range="wrap")  # the ids are hashes


def row_of(field, i):
    return sum(ROWS[:field]) + (0 if i < 0 else 1 + i % (ROWS[field] - 1))


def one_by_one(table, ids):
    return np.stack([[table[row_of(f, i)] for f, i in enumerate(r)] for r in ids.tolist()])


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_each_field_has_rows_of_its_own(dtype):
    ids = IDS % 2**31 if dtype == np.int32 else IDS
    ids = np.where(IDS < 0, -1, ids).astype(dtype)
    layer = field_embedding(ROWS, 4)
    got = layer(tf.constant(ids))
    assert got.shape == (4, 3, 4)
    np.testing.assert_array_equal(got, one_by_one(layer.embeddings.numpy(), ids))
    assert layer.embeddings.shape == (sum(ROWS), 4)


@pytest.mark.parametrize(("pooling", "factor"), [("sum", 1), ("mean", 3), ("sqrtn", 3**0.5)])
def test_pooling_adds_the_fields(pooling, factor):
    layer = field_embedding(ROWS, 4, pooling)
    got = layer(tf.constant(IDS))
    wanted = one_by_one(layer.embeddings.numpy(), IDS).sum(axis=1) / factor
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", [None, "mean"])
def test_bags_are_combined_into_a_vector_each(combiner, weighted, pooling):
    layer = field_embedding(ROWS, 4, pooling, combiner, num_bags=1)
    bag, weights = tf.ragged.constant(BAG, dtype=tf.int64), tf.ragged.constant(WEIGHTS)
    got = layer([tf.constant(IDS[:, :2]), (bag, weights) if weighted else bag])
    table = layer.embeddings.numpy()
    vectors = []
    for ids, w in zip(BAG, WEIGHTS, strict=True):
        w = np.array(w) if weighted else np.ones(len(ids))
        rows = np.array([table[row_of(2, i)] for i in ids]).reshape(-1, 4)
        scale = {"sum": 1, "mean": np.abs(w).sum(), "sqrtn": (w * w).sum() ** 0.5}[combiner]
        vectors.append((w[:, None] * rows).sum(axis=0) / (scale if len(ids) else 1))
    wanted = np.concatenate([one_by_one(table, IDS[:, :2]), np.stack(vectors)[:, None]], axis=1)
    wanted = wanted if pooling is None else wanted.mean(axis=1)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, -1 + 1e-6], [-3.0, -1.0], [-1e-3, 5.0]])
def test_the_mean_of_a_bag_is_not_longer_than_its_longest_vector(weights):
    """Also if the weights, of both signs, add up to nearly 0."""
    layer = field_embedding([9], 4, bag_combiner="mean", num_bags=1)
    ids = tf.ragged.constant([[1, 2]], dtype=tf.int64)
    got = layer([(ids, tf.ragged.constant([weights]))]).numpy()[0, 0]
    rows = layer.embeddings.numpy()[[2, 3]]
    w = np.array(weights)
    np.testing.assert_allclose(got, w @ rows / np.abs(w).sum(), rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(got) <= np.linalg.norm(rows, axis=1).max() * (1 + 1e-6)


def test_bags_alone():
    layer = field_embedding([9, 9], 2, bag_combiner="sum", num_bags=2)
    bag = tf.ragged.constant(BAG, dtype=tf.int64)
    got = layer([bag, bag]).numpy()
    table = layer.embeddings.numpy()
    rows = [0 if i < 0 else 1 + i % 8 for i in BAG[2]]
    np.testing.assert_allclose(got[2, 0], table[rows].sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(got[2, 1], table[[9 + r for r in rows]].sum(axis=0), rtol=1e-5)
    assert not got[1].any()


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_a_step_moves_the_rows_that_were_read_as_a_dense_step_does(pooling, fresh_keras):
    layer = field_embedding(ROWS, 2, pooling)
    inputs = tf.keras.Input((3,), dtype="int64")
    x = tf.keras.layers.Flatten()(layer(inputs))
    model = tf.keras.Model(inputs, x)
    model.compile(optimizers.SGD(0.5), "mse", jit_compile=False)
    before = layer.embeddings.numpy()
    dense = tf.Variable(before)
    target = np.ones((4, x.shape[1]), np.float32)
    rows = [[row_of(f, i) for f, i in enumerate(r)] for r in IDS.tolist()]
    with tf.GradientTape() as tape:
        y = tf.gather(dense, rows)
        y = tf.reshape(y, [4, -1]) if pooling is None else tf.reduce_mean(y, axis=1)
        loss = tf.reduce_mean((y - target) ** 2)
    gradient = tf.convert_to_tensor(tape.gradient(loss, dense))
    model.fit(IDS, target, batch_size=4, verbose=0)
    np.testing.assert_allclose(layer.embeddings, before - 0.5 * gradient, rtol=1e-5, atol=1e-6)
    untouched = sorted(set(range(sum(ROWS))) - set(np.ravel(rows).tolist()))
    np.testing.assert_array_equal(layer.embeddings.numpy()[untouched], before[untouched])


UNITS = [4, 2, 4]


def table_of(layer, field):
    """The rows of a field, of a layer whose fields have the widths UNITS."""
    table = getattr(layer, f"embeddings_{UNITS[field]}").numpy()
    start = ROWS[0] if field == 2 else 0
    return table[start : start + ROWS[field]]


def test_fields_have_widths_of_their_own():
    layer = field_embedding(ROWS, UNITS)
    got = layer(tf.constant(IDS))
    assert layer.compute_output_shape((None, 3)) == [(None, 4), (None, 2), (None, 4)]
    for field, vectors in enumerate(got):
        rows = [0 if i < 0 else 1 + i % (ROWS[field] - 1) for i in IDS[:, field].tolist()]
        np.testing.assert_array_equal(vectors, table_of(layer, field)[rows])


@pytest.mark.parametrize("pooling", [None, "sum"])
def test_vectors_are_projected_to_one_width(pooling):
    plain = field_embedding(ROWS, UNITS)
    layer = field_embedding(ROWS, UNITS, pooling, projected_units=3)
    ids = tf.constant(IDS)
    vectors, got = plain(ids), layer(ids)
    weights = {w.shape[-2:]: w for w in layer.weights if len(w.shape) == 3}
    plain.set_weights([w for w in layer.get_weights() if w.ndim == 2])
    vectors = [v.numpy() for v in plain(ids)]
    wide, narrow = (np.array(weights[(n, 3)]) for n in (4, 2))
    expected = np.stack(
        [vectors[0] @ wide[0], vectors[1] @ narrow[0], vectors[2] @ wide[1]], axis=1
    )
    expected = expected if pooling is None else expected.sum(axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert layer.compute_output_shape((None, 3)) == (None, *expected.shape[1:])


def test_bags_have_widths_of_their_own():
    bag = tf.ragged.constant(BAG, dtype=tf.int64)
    layer = field_embedding(ROWS, UNITS, bag_combiner="sum", num_bags=1)
    got = layer([tf.constant(IDS[:, :2]), bag])
    expected = [table_of(layer, 2)[[0 if i < 0 else 1 + i % 8 for i in r]].sum(axis=0) for r in BAG]
    np.testing.assert_allclose(got[2], expected, rtol=1e-5, atol=1e-6)


def test_one_width_for_each_field_is_the_same_as_one_width():
    one, each = field_embedding(ROWS, 4), field_embedding(ROWS, [4, 4, 4])
    expected = one(tf.constant(IDS))
    each(tf.constant(IDS))
    each.set_weights(one.get_weights())
    np.testing.assert_array_equal(tf.stack(each(tf.constant(IDS)), axis=1), expected)


def test_fields_of_several_widths_are_trained_and_saved(tmp_path, fresh_keras):
    inputs = tf.keras.Input((3,), dtype="int64")
    x = field_embedding(ROWS, UNITS, projected_units=3)(inputs)
    y = field_embedding(ROWS, UNITS)(inputs)
    x = tf.keras.layers.Concatenate()([tf.keras.layers.Flatten()(x), *y])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
    model.compile(optimizers.SGD(0.1), "mse", jit_compile=False)
    before = model.evaluate(IDS, np.ones((4, 1)), verbose=0)
    model.fit(IDS, np.ones((4, 1)), epochs=5, verbose=0)
    assert model.evaluate(IDS, np.ones((4, 1)), verbose=0) < before
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(loaded(IDS), model(IDS), rtol=1e-6)
    clone = type(model.layers[1]).from_config(model.layers[1].get_config())
    assert clone.get_config() == model.layers[1].get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": [2, 2]}, "units must be an integer or 3 of them"),
        ({"units": [2, 0, 2]}, "units must be a positive integer"),
        ({"units": [2, 3, 2], "pooling": "sum"}, "pooling needs vectors of one width"),
        ({"projected_units": 0}, "projected_units must be a positive integer"),
        ({"num_rows": []}, "num_rows must be integers of at least 2"),
        ({"num_rows": [3, 1]}, "num_rows must be integers of at least 2"),
        ({"units": 0}, "units must be a positive integer"),
        ({"pooling": "max"}, "pooling must be None or one of"),
        ({"bag_combiner": "max"}, "bag_combiner must be one of"),
        ({"num_bags": 4}, r"num_bags must be in \[0, 3\]"),
        ({"kernel_dtype": "int8"}, "kernel_dtype must be"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        field_embedding(**{"num_rows": ROWS, "units": 2, **arguments})


def test_wrong_inputs_are_named():
    with pytest.raises(ValueError, match=r"ids must be integers \[B, 3\], got int64 \(4, 2\)"):
        field_embedding(ROWS, 2)(tf.constant(IDS[:, :2]))
    with pytest.raises(ValueError, match="inputs must be 2 tensors or pairs, got 1"):
        field_embedding(ROWS, 2, num_bags=1)(tf.constant(IDS[:, :2]))


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
def test_a_model_is_saved(kernel_dtype, tmp_path):
    inputs = [
        tf.keras.Input((2,), dtype="int64", name="ids"),
        tf.keras.Input((None,), dtype="int64", ragged=True, name="bag"),
    ]
    x = field_embedding(ROWS, 4, num_bags=1, kernel_dtype=kernel_dtype)(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Flatten()(x))
    batch = [tf.constant(IDS[:, :2]), tf.ragged.constant(BAG, dtype=tf.int64)]
    want = model(batch)
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(batch), want)


def test_a_model_from_strings_to_vectors_is_exported(tmp_path):
    inputs = {n: tf.keras.Input((), dtype="string", name=n) for n in ("a", "b", "c")}
    ids = layers.StringHash(list("abc"))(inputs)
    x = tf.keras.layers.Flatten()(field_embedding(ROWS, 4)(ids))
    model = tf.keras.Model(inputs, x)
    batch = {n: tf.constant(["x", "", n]) for n in inputs}
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(tmp_path / "stock").signatures["serving_default"](**batch)
    np.testing.assert_allclose(next(iter(served.values())), model(batch), rtol=1e-6)


@pytest.mark.parametrize("pooling", [None, "sum"])
def test_l2_adds_the_gradient_of_the_penalty_of_the_rows_that_are_looked_up(pooling):
    gradients = []
    for l2 in (0.0, 0.5):
        layer = field_embedding(ROWS, 4, pooling, l2=l2, embeddings_initializer="ones")
        with tf.GradientTape() as tape:
            vectors = layer(tf.constant(IDS))
            penalty = tf.reduce_sum(layer(tf.constant(IDS)) ** 2) * (0.5 / 4)
            loss = tf.reduce_sum(tf.sin(vectors))
            if pooling is None and not l2:
                loss += penalty
        gradients.append(tf.convert_to_tensor(tape.gradient(loss, layer.embeddings)).numpy())
    plain, regularized = gradients
    if pooling is None:
        np.testing.assert_allclose(regularized, plain, rtol=1e-5)
        return
    touched = np.zeros(sum(ROWS))
    for row in IDS.tolist():
        for f, i in enumerate(row):
            touched[row_of(f, i)] += 1
    np.testing.assert_allclose(regularized - plain, np.outer(touched, np.full(4, 0.25)), rtol=1e-5)


def test_a_negative_l2_is_refused():
    with pytest.raises(ValueError, match="l2"):
        field_embedding(ROWS, 4, l2=-1.0)


def l2_step(optimizer, replicas=1, steps=1):
    """The table after steps in which only the penalty acts, and the loss of `fit`."""
    strategy = distribute.mirrored_strategy(replicas)
    with strategy.scope() if replicas > 1 else contextlib.nullcontext():
        tf.keras.utils.set_random_seed(2)
        ids = tf.keras.Input([len(ROWS)], dtype="int64")
        layer = field_embedding(ROWS, 4, l2=0.3)
        model = tf.keras.Model(ids, tf.keras.layers.Flatten()(layer(ids)))
        model.compile(optimizer(), lambda y, p: tf.reduce_sum(0.0 * p, axis=-1))
    batch = np.tile(IDS[:2], (4 * steps, 1))
    y = np.zeros([len(batch), 1], np.float32)
    history = model.fit(batch, y, batch_size=8, verbose=0, shuffle=False)
    return tf.convert_to_tensor(layer.embeddings).numpy(), history.history["loss"][-1]


@pytest.mark.one_tf
def test_the_strength_of_l2_does_not_depend_on_loss_scales_or_replicas():
    def sgd(**options):
        return optimizers.SGD(0.5, **options)

    want, loss = l2_step(sgd)
    assert loss == 0  # The reported loss is without the penalty.
    scale = optimizers.LossScaleOptimizer
    stock_scale = tf.keras.mixed_precision.LossScaleOptimizer
    ways = [lambda: scale(sgd()), lambda: stock_scale(tf.keras.optimizers.SGD(0.5))]
    if KERAS_3:
        scaled = {"loss_scale_factor": 1024.0}
        ways += [
            lambda: sgd(**scaled),
            lambda: optimizers.CompositeOptimizer(sgd(), {"field": sgd(**scaled)}),
        ]
    for optimizer in ways:
        got, loss = l2_step(optimizer)
        np.testing.assert_allclose(got, want, rtol=1e-6)
        assert loss == 0
    for replicas in (2, 4):
        np.testing.assert_allclose(l2_step(sgd, replicas)[0], want, rtol=1e-6)
    if KERAS_3:  # The mean of equal batches.
        got, _ = l2_step(lambda: sgd(gradient_accumulation_steps=2), steps=2)
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_bag_without_weight_is_0_and_has_finite_gradients(combiner):
    ids = tf.ragged.constant([[1, 2], [3], [4, 5], []], dtype=tf.int64)
    weights = tf.Variable([1.0, 2.0, 0.0, 0.0, 0.0])
    layer = field_embedding([8], 4, num_bags=1, bag_combiner=combiner)
    for library in (None, stock.library):
        with contextlib.nullcontext() if library is None else active.override(library):
            with tf.GradientTape() as tape:
                out = layer([(ids, ids.with_flat_values(weights))])
                loss = tf.reduce_sum(out**2)
            found = tape.gradient(loss, [*layer.trainable_variables, weights])
        assert not out[1:].numpy().any()
        assert out[0].numpy().any()
        assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in found)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_padding_of_a_bag_has_no_part_in_it_with_static_shapes(combiner, weighted):
    ids = tf.constant([[1, 2, -1, -1], [3, -1, -1, -1], [-1] * 4, [-2, 4, -1, 5]], tf.int64)
    weights = tf.constant(np.random.default_rng(0).random((4, 4)), tf.float32)
    layer = field_embedding([8], 4, num_bags=1, bag_combiner=combiner)
    bag = [(ids, weights)] if weighted else [ids]
    want = layer(bag).numpy()
    with ops.xla_compatible():
        np.testing.assert_allclose(layer(bag), want, atol=1e-6)


def test_a_single_field_may_have_its_number_of_rows_without_a_list(fresh_keras):
    ids = tf.constant([[3], [-1], [700]])
    alone, listed = (
        field_embedding(rows, 4, embeddings_initializer=tf.keras.initializers.RandomNormal(seed=1))
        for rows in (1000, [1000])
    )
    np.testing.assert_array_equal(alone(ids), listed(ids))
    assert alone.get_config()["num_rows"] == listed.get_config()["num_rows"] == [1000]
    with pytest.raises(ValueError, match=r"num_rows must be integers of at least 2, got \[1\]"):
        field_embedding(1, 4)
