"""What ids outside of a table mean: in native ops, stock ops, XLA, exports and the scorer."""

import re

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, export, layers, ops
from twml_ops.layers import SparseTable
from twml_ops.models.hashed_ids import HashedIds
from twml_ops.ops._library import library
from twml_ops.ops.stock import library as stock

pytestmark = pytest.mark.usefixtures("fresh_keras")

N = 11
INSIDE = np.array([3, 0, 10, 3], np.int64)
OUTSIDE = np.array([3 + N, -N, -1, 3 - 5 * N], np.int64)  # the same modulo N
CASES = {  # the layers, none of which takes ids outside of its table by default
    "sparse_linear": lambda **o: layers.SparseLinear(2, N, **o),
    "partitioned": lambda **o: layers.SparseLinear(2, N, num_partitions=3, **o),
    "grouped": lambda **o: layers.GroupedSparseLinear({"t": SparseTable(N, 2, **o)}, {"f": "t"}),
    "field_embedding": lambda **o: layers.FieldEmbedding(N + 1, 2, **o),
    "bag": lambda **o: layers.FieldEmbedding(N + 1, 2, num_bags=1, bag_combiner="sum", **o),
}

EXPORTED = [
    pytest.param(name, marks=pytest.mark.slow if name == "partitioned" else ()) for name in CASES
]


def ragged(ids):
    return tf.RaggedTensor.from_row_lengths(ids, [2, 1, 1])


def form_of(name, ids):
    """The ids in the form of the layer; negative ones mean something else to an embedding."""
    if name == "bag":
        return ragged(ids % (7 * N))
    return tf.constant(ids[:, None] % (7 * N)) if name == "field_embedding" else ragged(ids)


def model_of(name, **options):
    layer = CASES[name](**options)
    is_field = name == "field_embedding"
    inputs = tf.keras.Input(
        [1 if is_field else None], dtype="int64", name="ids", ragged=not is_field
    )
    outputs = layer({"f": inputs})["f"] if name == "grouped" else layer(inputs)
    if is_field or name == "bag":
        outputs = tf.keras.layers.Flatten()(outputs)
    return tf.keras.Model(inputs, outputs)


def ways(name, model, path):
    """The ways to score, each a function of the ids."""

    def with_stock(ids):
        with library.override(stock):
            return model(form_of(name, ids)).numpy()

    def with_scorer(ids):
        form = form_of(name, ids)
        if name == "field_embedding":
            return program.predict({"ids": form.numpy()})
        parts = {"ids": form.flat_values.numpy(), "ids_row_splits": form.row_splits.numpy()}
        return program.predict(parts)

    export.to_stock_tf(model, path / "stock")
    loaded = tf.saved_model.load(str(path / "stock"))
    export.to_scorer(model, path / "scorer")
    program = core.Scorer.load(path / "scorer")
    return {
        "native": lambda ids: model(form_of(name, ids)).numpy(),
        "stock": with_stock,
        "stock_export": lambda ids: np.asarray(loaded(form_of(name, ids))),
        "scorer": with_scorer,
    }


@pytest.mark.one_tf
@pytest.mark.parametrize("word", [None, "wrap"])
@pytest.mark.parametrize("name", EXPORTED)
def test_each_way_to_score_does_with_ids_outside_what_the_layer_says(name, word, tmp_path):
    model = model_of(name, **({} if word is None else {"out_of_range": word}))
    for way, score in ways(name, model, tmp_path).items():
        want = score(INSIDE)
        if word == "wrap":
            np.testing.assert_array_equal(score(OUTSIDE), want, err_msg=way)
            continue
        expected = "below the number of rows|out of range|must be below 11|out of bounds"
        for bad in OUTSIDE:
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=expected):
                print(way, bad, score(np.array([3, bad, 0, 1])))


@pytest.mark.parametrize("name", CASES)
def test_a_configuration_has_the_word(name):
    for word in ("error", "wrap"):
        layer = CASES[name](out_of_range=word)
        again = type(layer).from_config(layer.get_config())
        assert f"'out_of_range': '{word}'" in str(again.get_config())


def test_an_embedding_that_was_saved_before_there_was_the_word_wraps():
    config = layers.FieldEmbedding(N, 2).get_config()
    del config["out_of_range"]
    assert layers.FieldEmbedding.from_config(config).out_of_range == "wrap"


@pytest.mark.parametrize("name", ["sparse_linear", "partitioned"])
def test_wrapped_ids_train_the_same_rows_also_under_xla(name):
    layer = CASES[name](out_of_range="wrap")
    rows = np.array([[3, -1], [3 + N, 4]], np.int64)  # -1 is padding

    @tf.function(jit_compile=True, autograph=False)
    def compiled(ids):
        with ops.xla_compatible():
            return layer([ids, tf.ones(ids.shape)])

    want = layer(np.array([[3, -1], [3, 4]]))
    np.testing.assert_allclose(compiled(tf.constant(rows)), want, rtol=1e-6)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(rows))
    gradients = tape.gradient(loss, layer.kernels)
    touched = sum(
        np.count_nonzero(tf.reduce_any(tf.convert_to_tensor(g) != 0, 1)) for g in gradients
    )
    assert touched == 2


def test_ids_of_a_dynamic_table_have_no_range():
    layer = layers.DynamicSparseLinear(2, 5)
    layer(ragged(np.array([-(1 << 62), 1 << 62, -1, 7])), training=True)


@pytest.mark.parametrize("make", [lambda **o: layers.SparseLinear(2, N, **o), SparseTable])
def test_another_word_is_refused(make):
    options = {"input_dim": N, "units": 2} if make is SparseTable else {}
    with pytest.raises(
        ValueError, match=re.escape("out_of_range must be one of ('error', 'wrap')")
    ):
        make(**options, out_of_range="clip")


BEYOND = np.array([[3], [(1 << 63) + 3]], np.uint64)  # the second one is negative as int64


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("out_of_range", ["error", "wrap"])
@pytest.mark.parametrize("name", [*CASES, "category_rows"])
def test_an_unsigned_id_is_its_own_number_or_an_error(name, out_of_range, graph):
    if name == "category_rows":
        layer = layers.CategoryRows(1, min_count=1)
        layer.adapt([np.array([[3]])])
    else:
        options = {"out_of_range": out_of_range}
        layer = CASES[name](**options)

    def call(ids):
        if name in ("bag", "partitioned", "grouped"):
            ids = tf.RaggedTensor.from_tensor(ids)
        found = layer({"f": ids})["f"] if name == "grouped" else layer(ids)
        return found

    called = tf.function(call) if graph else call
    np.testing.assert_array_equal(
        call(tf.constant(BEYOND[:1])), call(tf.constant(BEYOND[:1].astype(np.int64)))
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="uint64 must be below 2\\^63"):
        called(tf.constant(BEYOND))


def test_ids_that_are_hashes_may_have_any_64_bits():
    lookup = layers.DynamicLookup(8)
    hashed = HashedIds(10)
    for layer, training in ((lookup, {"training": True}), (hashed, {})):
        ids = BEYOND.astype(np.int64)
        np.testing.assert_array_equal(layer(BEYOND, **training), layer(ids, **training))
        assert len(np.unique(layer(BEYOND, **training))) == 2


def test_ids_beyond_int64_are_not_counted():
    counts = layers.CategoryRows(1).new_counts()
    with pytest.raises(ValueError, match="ids must be below 2"):
        counts.update(0, BEYOND)
    assert counts.distinct() == [0]
