"""First and second derivatives equal the derivatives of a dense reference in stock ops."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import pairwise
from twml_ops import ops
from twml_ops.ops import _library
from twml_ops.ops.stock import library as stock

N, B, M, D = 7, 4, 3, 5
RNG = np.random.default_rng(5)
# Ids repeat within rows and between them, unsorted; not all are named.
IDS = np.array([4, 1, 4, 0, 6, 1, 1, 1, 5, 4, 0, 2])
VALUES = RNG.normal(size=B * M).astype(np.float32)
EVEN = np.arange(0, B * M + 1, M)
UNEVEN = np.array([0, 5, 5, 6, 12])
TABLE = RNG.normal(size=(N, D)).astype(np.float32)
TARGET = RNG.normal(size=(B, D)).astype(np.float32)
PICKED = [2, 0, 2, 3]  # what tf.gather reads, so that the gradient behind it is sparse

native_only = pytest.mark.skipif(not _library.is_native(), reason="there is no op library")
LIBRARIES = {
    "native": contextlib.nullcontext,
    "stock": lambda: _library.library.override(stock),
    "xla_compatible": ops.xla_compatible,
}


def dense(gradient):
    return None if gradient is None else tf.cast(tf.convert_to_tensor(gradient), tf.float32)


def of_rows(splits):
    return np.repeat(np.arange(len(splits) - 1), np.diff(splits))


def dense_product(ids, values, splits, table):
    """The dense reference of `sparse_linear`."""
    if values is None:
        values = tf.ones(len(ids))
    places = np.stack([of_rows(splits), ids], axis=1)
    matrix = tf.scatter_nd(places, values, [len(splits) - 1, N])
    return matrix @ tf.cast(tf.convert_to_tensor(table), tf.float32)


def derivatives(function, inputs, sparse, rows_only=False):
    """The loss of `function(*inputs)`, its gradients, and the gradients of a penalty on these.

    Args:
        function: gives [B, ...].
        inputs: variables and tensors.
        sparse: whether gradients that are given to ops are `tf.IndexedSlices`.
        rows_only: sparse gradients are squared by their rows, never made dense.
    """

    def picked(tensor, places=PICKED):
        return tf.gather(tensor, places) if sparse else tensor

    def penalized(gradient):
        if isinstance(gradient, tf.IndexedSlices) and rows_only:
            return tf.reduce_sum(gradient.values**2)
        return tf.reduce_sum(picked(dense(gradient)) ** 2)

    with tf.GradientTape() as outer:
        outer.watch([x for x in inputs if not isinstance(x, tf.Variable)])
        with tf.GradientTape() as inner:
            inner.watch([x for x in inputs if not isinstance(x, tf.Variable)])
            y = picked(function(*inputs))
            weight = tf.reshape(tf.cast(tf.range(1, tf.size(y) + 1), tf.float32), tf.shape(y))
            loss = tf.reduce_sum(tf.sin(y) * weight)
        first = inner.gradient(loss, inputs)
        penalty = loss + tf.add_n([penalized(g) for g in first if g is not None])
    second = outer.gradient(penalty, inputs)
    return [loss, *map(dense, first), *map(dense, second)]


def assert_twins(got, want, tolerance=1e-4):
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if w is not None:
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def table_of(source):
    if source == "tensor":
        return tf.constant(TABLE)
    return tf.Variable(TABLE, dtype="bfloat16" if source == "bfloat16" else "float32")


@pairwise(
    library=LIBRARIES,
    source=["variable", "bfloat16", "tensor"],
    binary=[False, True],
    graph=[False, True],
)
def test_sparse_linear_has_the_derivatives_of_the_dense_product(library, source, binary, graph):
    splits = EVEN if library == "xla_compatible" else UNEVEN
    ids = tf.constant(IDS, tf.int32 if binary else tf.int64)
    table = table_of(source)
    inputs = [table] if binary else [table, tf.constant(VALUES)]

    def both(sparse):
        def ours(table, values=None):
            return ops.sparse_linear(ids, values, splits, table)

        def twin(table, values=None):
            return dense_product(IDS, values, splits, table)

        with LIBRARIES[library]():
            got = derivatives(ours, inputs, sparse)
        return got, derivatives(twin, [wide, *inputs[1:]], sparse)

    # The gradients of a bfloat16 table are float32, so the dense reference has a float32 table.
    wide = tf.Variable(tf.cast(table, tf.float32)) if source == "bfloat16" else table
    for sparse in (False, True):
        got, want = tf.function(both, autograph=False)(sparse) if graph else both(sparse)
        assert_twins(got, want)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("source", ["variable", "tensor"])
def test_a_penalty_on_the_rows_of_a_gradient_equals_that_on_the_dense_one(source, graph):
    table, values = table_of(source), tf.constant(VALUES)

    def run():
        return derivatives(
            lambda table, values: ops.sparse_linear(IDS, values, UNEVEN, table),
            [table, values],
            False,
            rows_only=True,
        )

    want = derivatives(
        lambda table, values: dense_product(IDS, values, UNEVEN, table), [table, values], False
    )
    assert_twins(tf.function(run)() if graph else run(), want)


@pytest.mark.parametrize("graph", [False, True])
def test_no_derivative_by_the_table_is_dense(graph):
    rows = 1 << 40  # of a dense gradient that nobody could allocate
    ids, splits = tf.constant([5, 1 << 30, 5], tf.int64), [0, 2, 3]
    grad, values = tf.ones([2, D]), tf.constant([1.0, 2.0, 3.0])

    def run():
        with tf.GradientTape() as tape:
            tape.watch([values, grad])
            shape = tf.constant([rows, D], tf.int64)
            slices = ops.weights_grad(
                ids, values, tf.constant(splits, tf.int64), grad, shape, False
            )
            loss = tf.reduce_sum(slices.values**2)
        return tape.gradient(loss, [values, grad])

    by_values, by_grad = tf.function(run)() if graph else run()
    # Rows: (v0 + v2) * 1 and v1 * 1, in D columns.
    np.testing.assert_allclose(by_values, 2 * D * np.array([4.0, 2.0, 4.0]))
    np.testing.assert_allclose(by_grad, [[2 * (1 * 4 + 2 * 2)] * D, [2 * 3 * 4] * D])


def test_third_derivatives_equal_those_of_the_dense_product():
    values = tf.constant(VALUES)

    def third(product):
        table = tf.Variable(TABLE)
        with tf.GradientTape() as a:
            a.watch(values)
            with tf.GradientTape() as b:
                b.watch(values)
                with tf.GradientTape() as c:
                    c.watch(values)
                    loss = tf.reduce_sum(tf.sin(product(IDS, values, UNEVEN, table)) * TARGET)
                first = c.gradient(loss, table)
                square = tf.reduce_sum(tf.convert_to_tensor(first) ** 2)
            cube = tf.reduce_sum(b.gradient(square, values) ** 2)
        return list(map(dense, a.gradient(cube, [table, values])))

    for got, want in zip(third(ops.sparse_linear), third(dense_product), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


@pytest.mark.one_tf
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("library", LIBRARIES)
def test_grouped_products_have_the_derivatives_of_single_ones(library, graph):
    tables = [tf.Variable(TABLE), tf.Variable(TABLE[:, :2])]
    values = tf.constant(VALUES)

    def ours(first, second, values):
        batches = [(IDS, values, EVEN), (IDS, None, EVEN)]
        return tf.concat(ops.grouped_sparse_linear(batches, [first, second]), axis=1)

    def twin(first, second, values):
        return tf.concat(
            [dense_product(IDS, values, EVEN, first), dense_product(IDS, None, EVEN, second)], 1
        )

    def both(sparse):
        with LIBRARIES[library]():
            got = derivatives(ours, [*tables, values], sparse)
        return got, derivatives(twin, [*tables, values], sparse)

    for sparse in (False, True):
        assert_twins(*(tf.function(both, autograph=False)(sparse) if graph else both(sparse)))


def norm_of(name):
    """An op on entries and its dense reference, with a state that has some features."""
    if name == "max_norm":
        maxima = np.float32([0.5, 1.0, 2.0, 0.1, 1.5, 0.7, 3.0])
        m = tf.Variable(maxima)
        return (
            lambda values, bias: ops.max_norm(IDS, values, m, bias),
            lambda values, bias: (
                tf.gather(bias, IDS) + tf.clip_by_value(values / maxima[IDS], -1.0, 1.0)
            ),
        )
    moments = np.float64([[2, 0.1 * i, 0.5 + i] for i in range(N)])
    state = tf.Variable(moments)
    sd = np.sqrt(moments[:, 2] / moments[:, 0])[IDS].astype(np.float32)
    mean = moments[IDS, 1].astype(np.float32)
    return (
        lambda values, bias: ops.online_standardize(IDS, values, state, bias, clip=1.0),
        lambda values, bias: (
            tf.gather(bias, IDS) + tf.clip_by_value((values - mean) / sd, -1.0, 1.0)
        ),
    )


@pairwise(library=LIBRARIES, name=["max_norm", "online_standardize"], graph=[False, True])
def test_norms_have_the_derivatives_of_their_formula(library, name, graph):
    ours, twin = norm_of(name)
    inputs = [tf.constant(VALUES), tf.Variable(np.linspace(-1, 1, N).astype(np.float32))]

    def both(sparse):
        with LIBRARIES[library]():
            got = derivatives(ours, inputs, sparse)
        return got, derivatives(twin, inputs, sparse)

    for sparse in (False, True):
        assert_twins(*(tf.function(both, autograph=False)(sparse) if graph else both(sparse)))


@pytest.mark.one_tf
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("library", LIBRARIES)
def test_sums_of_duplicates_have_the_derivatives_of_segment_sums(library, graph):
    rows = tf.constant(RNG.normal(size=(len(IDS), 2)).astype(np.float32))
    unique, places = np.unique(IDS, return_inverse=True)

    def ours(rows):
        ids, summed = ops.sum_duplicates(tf.constant(IDS), rows)
        return tf.boolean_mask(summed, ids >= 0)  # compilable code leaves places over

    def twin(rows):
        return tf.math.unsorted_segment_sum(rows, places, len(unique))

    def both(sparse):
        with LIBRARIES[library]():
            got = derivatives(ours, [rows], sparse)
        return got, derivatives(twin, [rows], sparse)

    for sparse in (False, True):
        assert_twins(*(tf.function(both, autograph=False)(sparse) if graph else both(sparse)))


@pytest.mark.parametrize("op", ["sparse_linear", "grouped", "max_norm", "online_standardize"])
def test_a_sparse_gradient_equals_the_dense_one_whatever_the_static_shapes(op):
    table, bias = tf.Variable(TABLE), tf.Variable(tf.zeros(N))
    outputs = {
        "sparse_linear": lambda ids, v, s: ops.sparse_linear(ids, v, s, table),
        "grouped": lambda ids, v, s: ops.grouped_sparse_linear([(ids, v, s)], [table])[0],
        "max_norm": lambda ids, v, s: ops.max_norm(ids, v, tf.ones_like(maxima), bias),
    }
    maxima = tf.Variable(tf.ones(N))
    moments = tf.Variable(np.ones([N, 3]))
    outputs["max_norm"] = lambda ids, v, s: ops.max_norm(ids, v, maxima, bias)
    outputs["online_standardize"] = lambda ids, v, s: ops.online_standardize(ids, v, moments, bias)
    trained = table if op in ("sparse_linear", "grouped") else bias
    mask = np.zeros(B if trained is table else len(IDS), bool)
    mask[[0, 2]] = True

    def run(ids, values, splits):
        found = []
        for choose in (
            lambda y: tf.reshape(tf.gather(y, [0, 2, 2]), [-1]),
            lambda y: (
                tf.reshape(y, [len(mask), -1])[0] + 0 * tf.reduce_sum(tf.boolean_mask(y, mask))
            ),
            lambda y: tf.boolean_mask(y, mask),
        ):
            with tf.GradientTape() as tape:
                tape.watch(values)
                y = outputs[op](ids, values, splits)
                loss = tf.reduce_sum(choose(y) ** 2)
            found += map(dense, tape.gradient(loss, [values, trained]))
        return found

    arguments = (tf.constant(IDS), tf.constant(VALUES), tf.constant(UNEVEN, tf.int64))
    signature = [tf.TensorSpec(None, a.dtype) for a in arguments]
    want = run(*arguments)
    for shape in (None, [None]):
        signature = [tf.TensorSpec(shape, a.dtype) for a in arguments]
        assert_twins(tf.function(run, input_signature=signature)(*arguments), want)


@native_only
@pytest.mark.parametrize("primal", ["values", "table", "bias"])
@pytest.mark.parametrize("op", ["sparse_linear", "grouped", "max_norm", "online_standardize"])
def test_forward_mode_is_refused_with_one_error(op, primal):
    values = tf.constant(VALUES)
    table, bias = tf.Variable(TABLE), tf.Variable(tf.zeros(N))
    is_product = op in ("sparse_linear", "grouped")
    if primal == ("bias" if is_product else "table"):
        pytest.skip("the op has no such input")
    call = {
        "sparse_linear": lambda: ops.sparse_linear(IDS, values, UNEVEN, table),
        "grouped": lambda: ops.grouped_sparse_linear([(IDS, values, UNEVEN)], [table]),
        "max_norm": lambda: norm_of(op)[0](values, bias),
        "online_standardize": lambda: norm_of(op)[0](values, bias),
    }[op]
    x = {"values": values, "table": table, "bias": bias}[primal]
    with (
        pytest.raises(NotImplementedError, match="does not support forward mode"),
        tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)),
    ):
        call()


def test_discretizers_have_no_gradient_for_passed_values():
    values = tf.constant(VALUES)
    state = ([1], [0.5], [0, 1])

    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(values)
            _, a, _ = ops.percentile_discretize(IDS, values, UNEVEN, *state)
            _, b, _ = ops.hashing_discretize(IDS, values, UNEVEN, *state, output_bits=8)
        return [tape.gradient(out, values) for out in (a, b)]

    assert gradients() == [None, None]
    with LIBRARIES["stock"]():
        assert gradients() == [None, None]
