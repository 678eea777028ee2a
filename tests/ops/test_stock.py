"""Stock ops equal the op library: integers exactly, floats up to rounding."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.test_tree_sums import numbers, random_trees
from tests.pairwise import pairwise
from twml_ops import core, ops
from twml_ops.ops import _library
from twml_ops.ops.stock import library as stock
from twml_ops.ops.stock.update_rules import UPDATE_FORMULAS

if not _library.is_native():
    pytest.skip("there is no op library to compare with", allow_module_level=True)

INT64 = np.iinfo(np.int64)
EDGES = np.array([0, 1, -1, 2, 1 << 31, -(1 << 31), INT64.max, INT64.min], np.int64)
# Denormals, signed zeros and infinities, which TensorFlow's threads may compare incorrectly.
FLOATS = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1e-40, 1.0, -1.0, 1.5, 3e38, -3e38, np.inf, -np.inf, np.nan],
    np.float32,
)


def assert_equal(fn, exact=True, graph=True):
    """Compares the op library with stock ops in eager mode and in a graph."""
    native = fn()
    with _library.library.override(stock):
        others = [fn(), tf.function(fn, autograph=False)()] if graph else [fn()]
    for other in others:
        tf.nest.assert_same_structure(native, other)
        for a, b in zip(tf.nest.flatten(native), tf.nest.flatten(other), strict=True):
            if a is None:
                continue
            a, b = tf.convert_to_tensor(a).numpy(), tf.convert_to_tensor(b).numpy()
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            if exact or a.dtype.kind == "i":
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def batch(rng, rows, entries, dim, dtype=np.int64):
    ids = rng.integers(0, dim, entries).astype(dtype)
    splits = np.sort(np.concatenate([[0, entries], rng.integers(0, entries + 1, rows - 1)]))
    return ids, rng.normal(size=entries).astype(np.float32), splits.astype(np.int64)


@pytest.mark.parametrize("bits", [1, 31, 62])
@pytest.mark.parametrize("salt", [0, -1, 1 << 40])
def test_hashes(bits, salt):
    assert_equal(lambda: ops.hash_ids(EDGES, bits, salt))
    assert_equal(lambda: ops.hash_ids(tf.constant([[-3, 7]], tf.int32), bits, salt))
    assert_equal(lambda: ops.hash_ids(np.zeros((0, 2), np.int64), bits, salt))


@pytest.mark.parametrize("number", [0, 1, 500])
def test_positions_of_keys(number):
    known = np.unique(EDGES if number == 1 else core.hash_ids(np.arange(number), 62))
    keys = np.concatenate([known, np.ravel(EDGES), [5]])
    assert_equal(lambda: ops.find_keys(known, keys))
    assert_equal(lambda: ops.find_keys(known, keys.reshape(1, -1)))


@pytest.mark.parametrize("pooled", [False, True])
def test_rows_of_fields(pooled):
    sizes = [2, 3, 1 << 16]
    ids = np.stack([EDGES] * 3, axis=1)
    for some in (ids, ids[:0], np.array([[-1, 5, 7]], np.int32)):
        assert_equal(lambda i=some: ops.field_rows(i, sizes, first_row=3, pooled=pooled))


@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize("one_vector", [False, True])
def test_dot_products_of_gathered_rows(rows, one_vector):
    rng = np.random.default_rng(rows)
    table = rng.normal(size=(40, 5)).astype(np.float32)
    vectors = rng.normal(size=(1 if one_vector else rows, 5)).astype(np.float32)
    positions = rng.integers(-1, 40, (rows, 7))
    assert_equal(lambda: ops.gather_dot(table, positions, vectors), exact=False)
    assert_equal(lambda: ops.gather_dot(table[:0], -np.ones_like(positions), vectors), exact=False)


@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize("own", [False, True])
def test_sums_of_trees(rows, own):
    rng = np.random.default_rng(rows)
    nodes, x = random_trees(rng, 3, 4, 5, 6), numbers(rng, rows, 6)
    ensembles = rng.integers(0, 3, rows if own else 0)
    # TensorFlow's comparisons flush denormals to zero, and the kernel's do not.
    x = np.where(np.abs(x) < 1e-30, np.float32(0), x)
    nodes["thresholds"] = np.where(np.abs(nodes["thresholds"]) < 1e-30, 0, nodes["thresholds"])
    assert_equal(lambda: ops.tree_sums(x, ensembles, **nodes, max_depth=5), exact=False)


@pairwise(entries=[0, 1, 40], units=[1, 5, 33], binary=[False, True], dtype=[np.int32, np.int64])
def test_sparse_linear_and_its_gradients(entries, units, binary, dtype):
    rng = np.random.default_rng(entries + units)
    ids, values, splits = batch(rng, 6, entries, 9, dtype)
    table = tf.Variable(rng.normal(size=(9, units)).astype(np.float32))
    target = rng.normal(size=(6, units)).astype(np.float32)
    whole = table.numpy()

    def run():
        x = tf.constant(values)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.sparse_linear(ids, None if binary else x, splits, table)
            loss = tf.reduce_sum(y * target)
        by_table, by_values = tape.gradient(loss, [table, x])
        assert isinstance(by_table, tf.IndexedSlices)
        rest = [] if binary else [by_values]
        return [y, by_table.indices, by_table.values, *rest]

    assert_equal(run, exact=False)
    assert_equal(lambda: ops.sparse_linear(ids, values, splits, whole), exact=False)


@pytest.mark.parametrize("library", ["loaded", "stock"])
def test_sums_take_every_id_that_a_gradient_may_have(library):
    last = np.iinfo(np.int32).max
    with _library.library.override(stock if library == "stock" else _library.library.loaded):
        ids, rows = ops.sum_duplicates(np.int32([last, 0, last]), np.float32([[1], [2], [4]]))
        assert ids.numpy().tolist() == [0, last]
        assert rows.numpy().tolist() == [[2.0], [5.0]]
        for bad in ([-1], [np.iinfo(np.int64).max]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="is out of range"):
                ops.sum_duplicates(np.int64(bad), np.float32([[1]]))


@pairwise(rows=[1, 7], entries=[0, 1, 30])
def test_duplicates_and_offsets(rows, entries):
    rng = np.random.default_rng(entries)
    ids = rng.integers(0, 6, entries)
    grads = rng.normal(size=(entries, 3)).astype(np.float32)
    assert_equal(lambda: ops.sum_duplicates(ids, grads), exact=False)
    assert_equal(lambda: ops.sum_duplicates(ids.astype(np.int32), grads), exact=False)
    coo = np.sort(rng.integers(0, rows, entries))
    assert_equal(lambda: ops.row_splits_from_indices(coo, rows))
    assert_equal(lambda: ops.csr_from_indices(np.stack([coo, ids], axis=1), rows))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("entries", [0, 50])
def test_max_norm_its_state_and_its_gradients(training, with_bias, entries):
    rng = np.random.default_rng(4)
    ids, values, _ = batch(rng, 2, entries, 9)
    values[::7] = np.resize([np.inf, np.nan, -np.inf], len(values[::7]))
    state = np.abs(rng.normal(size=9)).astype(np.float32)

    def run(training=training):
        m, x = tf.Variable(state, trainable=False), tf.constant(values)
        bias = tf.Variable(np.arange(9, dtype=np.float32)) if with_bias else None
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.max_norm(ids, x, m, bias, training, nonfinite="zero")
            loss = tf.reduce_sum(y * tf.range(1.0, entries + 1))
        gradients = tape.gradient(loss, [x, bias] if with_bias else [x])
        parts = [[g.indices, g.values] if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        return [y, tf.convert_to_tensor(m), parts]

    native = run()
    with _library.library.override(stock):
        for got in (run(), run(tf.constant(training))):
            for a, b in zip(tf.nest.flatten(native), tf.nest.flatten(got), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def buckets(rng, features):
    """Feature ids, boundaries and splits: features without boundaries, and repeated ones, too."""
    counts = rng.integers(0, 4, features)
    values = np.sort(rng.choice(FLOATS[:-1], (features, 4)), axis=1)
    flat = np.concatenate([v[:n] for v, n in zip(values, counts, strict=True)] or [[]])
    ids = np.sort(rng.choice(EDGES, features, replace=False))
    return ids, flat.astype(np.float32), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


CHOICES = list(itertools.product(["left", "right"], ["bucket", "drop"], ["pass", "drop"]))


@pairwise(
    side=["left", "right"],
    missing=["bucket", "drop"],
    unknown=["pass", "drop"],
    features=[0, 1, 5],
    binary=[False, True],
)
def test_discretizers(side, missing, unknown, features, binary):
    rng = np.random.default_rng(features)
    state = buckets(rng, features)
    ids = np.repeat(EDGES, len(FLOATS))
    values = None if binary else np.tile(FLOATS, len(EDGES))
    splits = np.array([0, 0, 20, 60, len(ids)], np.int64)
    choice = {"side": side, "missing": missing, "unknown": unknown}
    batch = (ids, values, splits)
    assert_equal(
        lambda: ops.percentile_discretize(*batch, *state, pass_through_bits=40, **choice),
        graph=features == 5,
    )
    assert_equal(
        lambda: ops.hashing_discretize(*batch, *state, output_bits=62, **choice), graph=False
    )
    narrow = (ids.astype(np.int32), values, splits)
    assert_equal(lambda: ops.percentile_discretize(*narrow, *state, **choice), graph=False)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_buckets_of_any_floats(data):
    floats = st.floats(width=32, allow_nan=False)
    boundaries = np.sort(np.array(data.draw(st.lists(floats, max_size=8)), np.float32))
    values = np.array(data.draw(st.lists(st.floats(width=32), max_size=8)), np.float32)
    values = np.concatenate([values, boundaries])
    side = data.draw(st.sampled_from(["left", "right"]))
    splits = [0, len(values)]
    assert_equal(
        lambda: ops.percentile_discretize(
            np.zeros(len(values), np.int64),
            values,
            splits,
            [0],
            boundaries,
            [0, len(boundaries)],
            side=side,
        ),
        graph=False,
    )


RULES = {
    "sgd": (0, [0.1, 0.01]),
    "momentum": (1, [0.1, 0.01, 0.9, 1.0]),
    "adagrad": (1, [0.1, 0.01, 1e-7]),
    "rowwise_adagrad": (1, [0.1, 0.01, 1e-7]),
    "lazy_adam": (2, [0.1, 0.01, 0.9, 0.999, 1e-7]),
    "ftrl": (2, [0.1, 0.01, -0.4, 0.1, 0.2, 0.3]),
}


def test_the_rules_are_those_of_the_core():
    rules = core.update_rules()
    described = {
        rule: (len(f.slots), f.rowwise_slots, len(f.hyperparameters))
        for rule, f in UPDATE_FORMULAS.items()
    }
    assert described == rules
    for rule, (number, hyper) in RULES.items():
        assert (number, len(hyper)) == (rules[rule][0], rules[rule][2])


@pairwise(
    rule=RULES,
    entries_and_rate=[(0, 0.1), (12, 0.1), (12, 0.0), (12, 1e-40)],
    width=[(), (0,), (1,), (5,)],
)
def test_updates(rule, entries_and_rate, width):
    if rule == "rowwise_adagrad" and not width:
        return
    number, hyper = RULES[rule]
    entries, rate = entries_and_rate
    hyper = [rate, *hyper[1:]]
    rng = np.random.default_rng(entries)
    ids = rng.integers(0, 9, entries)
    rows = rng.normal(size=(entries, *width)).astype(np.float32)
    start = rng.normal(size=(9, *width)).astype(np.float32)
    slots = 0.5 + rng.random((2, 9, *width)).astype(np.float32)
    if rule == "rowwise_adagrad":
        slots = np.ones((2, 9), np.float32)

    def run(library):
        variables = [tf.Variable(start), *(tf.Variable(s) for s in slots[:number])]
        with _library.library.override(library):

            def step():
                slices = tf.IndexedSlices(rows, ids)
                ops.apply_rows(rule, variables[0], variables[1:], slices, hyper)

            step()
            tf.function(step)()
        return variables

    for a, b in zip(run(_library.library.loaded), run(stock), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        untouched = np.setdiff1d(np.arange(9), ids)
        np.testing.assert_array_equal(a.numpy()[untouched], b.numpy()[untouched])


def test_bad_input_gets_the_same_message_and_changes_nothing():
    table, m = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.zeros([4]))
    cases = [
        lambda: ops.sparse_linear([0, 9], [1.0, 1.0], [0, 2], table),
        lambda: ops.sparse_linear([0, 1], [1.0, 1.0], [0, 3, 2], table),
        lambda: ops.sparse_linear([0, 1], [1.0], [0, 2], table),
        lambda: ops.sparse_linear([0, 1], [1.0, 1.0], [0, 1], table),
        lambda: ops.max_norm([0, 1], [1.0, np.inf], m, None, True),
        lambda: ops.max_norm([0, -1], [1.0, 1.0], m, None, True),
        lambda: ops.percentile_discretize([5], [1.0], [0, 1], [1], [0.5], [0, 1], unknown="error"),
        lambda: ops.percentile_discretize([5], [1.0], [0, 1], [1], [2.0, 0.5], [0, 2]),
        lambda: ops.hash_ids([5], 63),
        lambda: ops.apply_rows(
            "sgd", table, [], tf.IndexedSlices(tf.ones([2, 2]), [0, 4]), [0.1, 0.0]
        ),
        lambda: ops.row_splits_from_indices([1, 0], 3),
        lambda: ops.csr_from_indices([[1, 7], [0, 7]], 3),
        lambda: ops.csr_from_indices([[1, 7], [3, 7]], 3),
        lambda: ops.csr_from_indices([[1, 7, 7]], 3),
    ]
    for case in cases:
        with pytest.raises(tf.errors.InvalidArgumentError) as native:
            case()
        message = native.value.message.split(" [Op:")[0].split("} ")[-1]
        with _library.library.override(stock):
            with pytest.raises(tf.errors.InvalidArgumentError) as error:
                case()
            assert error.value.message.removesuffix(".0") == message
            # TensorFlow itself refuses sizes that are known while a graph is built.
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
                tf.function(lambda case: [None, case()][:1], autograph=False)(case)
    assert np.all(table.numpy() == 1)
    assert np.all(m.numpy() == 0)


def test_a_graph_says_what_is_wrong_with_a_batch():
    table = tf.Variable(tf.ones([4, 2]))
    specs = [tf.TensorSpec([None], t) for t in (tf.int64, tf.float32, tf.int64)]
    with _library.library.override(stock):
        product = tf.function(
            lambda *batch: ops.sparse_linear(*batch, table),
            input_signature=specs,
            autograph=False,
        )
        product([0, 3], [1.0, 1.0], [0, 2])
    for batch, message in (
        (([0, 9], [1.0, 1.0], [0, 2]), r"ids\[1\] = 9 is out of range \[0, 4\)"),
        (([0, 1], [1.0], [0, 2]), "values must have 2 items, one for each id, got 1"),
        (([0, 1], [1.0, 1.0], [0, 3, 2]), r"must be non-decreasing: row_splits\[2\] = 2 after 3"),
        (([0, 1], [1.0, 1.0], []), "row_splits must not be empty"),
        (([0, 1], [1.0, 1.0], [0, 1]), r"row_splits\[1\] must be the number of entries 2, got 1"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            product(*batch)


@pytest.mark.parametrize("hashing", [False, True])
@pytest.mark.parametrize(("side", "missing", "unknown"), CHOICES)
def test_discretizers_that_keep_their_inputs(side, missing, unknown, hashing):
    batch = ([3, 9, 3, 7, 3], [1.0, 2.0, np.nan, 5.0, 0.5], [0, 2, 4, 5])
    state = ([3, 7], [0.5, 1.5, 2.0], [0, 2, 3])
    choice = {"side": side, "missing": missing, "unknown": unknown, "keep_inputs": True}
    op, bits = (
        (ops.hashing_discretize, "output_bits")
        if hashing
        else (ops.percentile_discretize, "pass_through_bits")
    )
    for values in (batch[1], None):
        assert_equal(
            lambda values=values: op(batch[0], values, batch[2], *state, **{bits: 9}, **choice),
            graph=False,
        )


def test_max_norm_with_decay():
    def run():
        m = tf.Variable([4.0, 4.0, 4.0])
        y = ops.max_norm([0, 0, 2], [1.0, 0.5, 9.0], m, None, True, decay=0.5)
        return [y, m.read_value()]

    assert_equal(run, graph=False)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_standardization_its_state_and_its_gradients(training, decay):
    rng = np.random.default_rng(6)
    ids, values, _ = batch(rng, 2, 60, 7)
    values[::9] = np.resize([np.inf, np.nan, -np.inf], len(values[::9]))
    values[ids == 3] = 1e4  # one value only: far from what it knew, and no deviation
    state = np.abs(rng.normal(size=(7, 3)))
    state[3] = 2, 0, 0
    state[2] = 0  # never seen

    def run(training=training):
        moments, x = tf.Variable(state, trainable=False), tf.constant(values)
        bias = tf.Variable(np.arange(7, dtype=np.float32))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.online_standardize(
                ids, x, moments, bias, training, clip=1.5, decay=decay, nonfinite="zero"
            )
            loss = tf.reduce_sum(y * tf.range(1.0, 61.0))
        by_values, by_bias = tape.gradient(loss, [x, bias])
        return [y, moments.read_value(), by_values, by_bias.indices, by_bias.values]

    native = run()
    with _library.library.override(stock):
        for got in (run(), run(tf.constant(training))):
            for a, b in zip(native, got, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_sketches(weighted):
    rng = np.random.default_rng(7)
    ids, values = rng.integers(0, 5, 3000), rng.normal(size=3000).astype(np.float32)
    weights = rng.integers(0, 4, 3000).astype(np.float32) if weighted else None

    def run():
        one = ops.sketch_update(ops.empty_sketch(0.05, 16, weighted), ids, values, weights)
        other = ops.sketch_update(ops.empty_sketch(0.05, 16, weighted), ids[:9], values[:9] + 3)
        merged = ops.sketch_merge(one, other)
        return [*merged, ops.sketch_quantiles(merged, [0, 4, 9], [0.1, 0.5, 1.0])]

    assert_equal(run)
    quantiles = lambda: ops.sketch_quantiles(ops.empty_sketch(), [0], [2.0])  # noqa: E731
    with _library.library.override(stock):
        for call in (quantiles, tf.function(quantiles)):
            with pytest.raises(tf.errors.InvalidArgumentError, match="probabilities"):
                call()


@pairwise(rule=["sgd", "lazy_adam"], graph=[False, True])
def test_bfloat16_tables_and_their_updates(rule, graph):
    rng = np.random.default_rng(8)
    ids, values, splits = batch(rng, 6, 40, 9)
    start = rng.normal(size=(9, 33)).astype(np.float32)

    def run():
        table = tf.Variable(tf.cast(start, tf.bfloat16))
        slots = [tf.Variable(tf.zeros([9, 33])) for _ in range(2)] if rule == "lazy_adam" else []
        hyper = [0.01, 0.1, 0.9, 0.999, 1e-7][: 5 if slots else 2]

        def step(i):
            with tf.GradientTape() as tape:
                y = ops.sparse_linear(ids, values, splits, table)
                loss = tf.reduce_sum(y * y)
            gradient = tape.gradient(loss, table)
            assert gradient.values.dtype == tf.float32
            ops.apply_rows(rule, table, slots, gradient, hyper, seed=i, fuse=False)
            return y, gradient.indices, gradient.values

        call = tf.function(step) if graph else step
        first = call(tf.constant(1, tf.int64))
        return [*first, tf.cast(table, tf.float32), *slots]

    native = run()
    with _library.library.override(stock):
        got = run()
    for a, b in zip(native, got, strict=True):
        a, b = np.asarray(tf.convert_to_tensor(a)), np.asarray(tf.convert_to_tensor(b))
        different = ~np.isclose(a, b, rtol=1e-5, atol=1e-5)
        assert different.mean() < 0.01  # a weight at the very edge of being rounded up
        np.testing.assert_allclose(a, b, rtol=1 / 128, atol=1e-5)


def test_grouped_tables():
    tables = [tf.Variable(tf.random.normal([4, n])) for n in (2, 3)]
    batches = [([0, 3], [2.0, 1.0], [0, 2]), ([1], None, [0, 1])]
    assert_equal(lambda: ops.grouped_sparse_linear(batches, tables), exact=False)
