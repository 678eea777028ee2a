"""Row-sparse updates: the update rules, untouched rows, and fusion with the backward pass."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops

InvalidArgument = tf.errors.InvalidArgumentError
N, D = 9, 5
IDS = np.array([6, 1, 6, 4, 6])  # repeated, unsorted
TOUCHED = np.array([1, 4, 6])

# learning_rate, decay and the rule's own hyperparameters; number and shape of its slots.
RULES = {
    "sgd": ([0.1, 0.01], 0),
    "momentum": ([0.1, 0.01, 0.9, 0.0], 1),
    "nesterov": ([0.1, 0.0, 0.9, 1.0], 1),
    "adagrad": ([0.1, 0.01, 1e-6], 1),
    "rowwise_adagrad": ([0.1, 0.01, 1e-6], 1),
    "lazy_adam": ([0.1, 0.01, 0.9, 0.99, 1e-6], 2),
    "ftrl": ([0.1, 0.01, -0.5, 0.02, 0.03, 0.01], 2),
}


def rule_of(name):
    return "momentum" if name == "nesterov" else name


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def initial(name, dim=D):
    """var and slots; slots are positive, as accumulators are."""
    slot_shape = (N,) if name == "rowwise_adagrad" else (N, dim)
    slots = [np.abs(random(*slot_shape, seed=1 + s)) + 0.1 for s in range(RULES[name][1])]
    return [random(N, dim), *slots]


def reference(name, tables, ids, rows):
    """The formulas of update_rules.h in float64, row by row."""
    h = RULES[name][0]
    tables = [t.astype(np.float64) for t in tables]
    lr, decay = h[:2]
    for i in np.unique(ids):
        g = rows.astype(np.float64)[ids == i].sum(axis=0)
        w = tables[0][i] * (1 - decay)
        s = [t[i] for t in tables[1:]]
        if name == "sgd":
            w = w - lr * g
        elif name in ("momentum", "nesterov"):
            s[0] = h[2] * s[0] - lr * g
            w = w + (h[2] * s[0] - lr * g if h[3] else s[0])
        elif name in ("adagrad", "rowwise_adagrad"):
            s[0] = s[0] + (g**2 if name == "adagrad" else np.mean(g**2))
            w = w - lr * g / np.sqrt(s[0] + h[2])
        elif name == "lazy_adam":
            s[0] = h[2] * s[0] + (1 - h[2]) * g
            s[1] = h[3] * s[1] + (1 - h[3]) * g**2
            w = w - lr * s[0] / (np.sqrt(s[1]) + h[4])
        else:
            power, l1, l2, shrinkage = h[2:]
            total = s[0] + g**2
            sigma = (total**-power - s[0] ** -power) / lr
            s = [total, s[1] + g + 2 * shrinkage * w - sigma * w]
            w = (np.clip(s[1], -l1, l1) - s[1]) / (total**-power / lr + 2 * l2)
        tables[0][i] = w
        for t, x in zip(tables[1:], s, strict=True):
            t[i] = x
    return tables


def variables(tables):
    return [tf.Variable(t) for t in tables]


def bits(tables):
    return [np.asarray(t).tobytes() for t in tables]


def slices(ids, rows):
    return tf.IndexedSlices(tf.constant(rows, tf.float32), tf.constant(ids))


def sgd(table, ids, rows, learning_rate):
    ops.apply_rows("sgd", table, [], slices(ids, rows), [learning_rate, 0.0])


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("id_type", [np.int32, np.int64])
@pytest.mark.parametrize("ids", [IDS, TOUCHED], ids=["repeated ids", "ascending ids"])
@pytest.mark.parametrize("name", RULES)
def test_rules_equal_their_formulas(name, ids, id_type, graph):
    ids = ids.astype(id_type)
    tables, rows = initial(name), random(len(ids), D, seed=9)
    got = variables(tables)

    def step():
        hyper = [tf.constant(h) for h in RULES[name][0]]
        ops.apply_rows(rule_of(name), got[0], got[1:], slices(ids, rows), hyper)

    (tf.function(step) if graph else step)()
    for g, w in zip(got, reference(name, tables, ids, rows), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_untouched_rows_are_bit_identical(name):
    tables = initial(name)
    got = variables(tables)
    ops.apply_rows(rule_of(name), got[0], got[1:], slices(IDS, random(5, D)), RULES[name][0])
    others = np.setdiff1d(np.arange(N), TOUCHED)
    for g, before in zip(got, tables, strict=True):
        assert g.numpy()[others].tobytes() == before[others].tobytes()
        assert not np.any(g.numpy()[TOUCHED] == before[TOUCHED])


def test_lazy_adam_is_corrected_by_the_step():
    got = ops.bias_corrected(0.1, 3, 0.9, 0.99)
    np.testing.assert_allclose(got, 0.1 * np.sqrt(1 - 0.99**3) / (1 - 0.9**3), rtol=1e-5)


@pytest.mark.parametrize("shape", [(N,), (N, 2, 3)])
def test_rows_of_any_rank_are_updated(shape):
    before, rows = random(*shape), random(5, *shape[1:])
    w = tf.Variable(before)
    sgd(w, IDS, rows, 0.5)
    np.subtract.at(before, IDS, 0.5 * rows)
    np.testing.assert_allclose(w, before, rtol=1e-5, atol=1e-6)


def test_row_wise_slots_of_a_vector_have_one_number_per_row():
    w, a = tf.Variable(random(N)), tf.Variable(np.ones(N, np.float32))
    ops.apply_rows("rowwise_adagrad", w, [a], slices([2], [3.0]), [0.1, 0.0, 1e-7])
    assert a.numpy()[2] == 10.0


def test_hyperparameters_may_change_from_step_to_step_in_one_graph():
    w = tf.Variable(np.zeros((N, D), np.float32))

    @tf.function
    def step(rate):
        sgd(w, [3], np.ones((1, D)), rate)

    for rate in (1.0, 0.5, 0.25):
        step(tf.constant(rate, tf.float64))
    assert w.numpy()[3].tolist() == [-1.75] * D


def test_an_update_of_no_rows_changes_nothing():
    w = tf.Variable(random(N, D))
    before = w.numpy().tobytes()
    sgd(w, np.zeros(0, np.int64), np.zeros((0, D)), 0.5)
    assert w.numpy().tobytes() == before


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "lazy_adam"])
@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([0, N], np.ones((2, D)), r"ids\[1\] = 9 is out of range \[0, 9\)"),
        ([-3, 0], np.ones((2, D)), r"ids\[0\] = -3 is out of range"),
        ([0, 1], np.ones((3, D)), "rows must have one row for each of the 2 ids, got 3"),
        ([0, 1], np.ones((2, D + 1)), "as wide as the table's, 5, got 6"),
        ([[0, 1]], np.ones((2, D)), "ids must have rank 1"),
        ([0], 1.0, "rows must have rank 1 or more"),
    ],
)
def test_a_refused_update_changes_nothing(name, ids, rows, message):
    got = variables(initial(name))
    before = bits(got)
    gradient = tf.IndexedSlices(tf.constant(rows, tf.float32), tf.constant(ids))
    with pytest.raises(InvalidArgument, match=message):
        ops.apply_rows(name, got[0], got[1:], gradient, RULES[name][0])
    assert bits(got) == before


def test_tables_and_slots_of_different_shapes_are_refused():
    w, other = tf.Variable(random(N, D)), tf.Variable(random(N, D + 1))
    gradient = slices(np.array([0]), random(1, D))
    hyper = RULES["adagrad"][0]
    with pytest.raises(InvalidArgument, match=r"slots\[0\] must fit var \[9,5\], got \[9,6\]"):
        ops.apply_rows("adagrad", w, [other], gradient, hyper)
    with pytest.raises(InvalidArgument, match="var and slots must be different variables"):
        ops.apply_rows("adagrad", w, [w], gradient, hyper)
    with pytest.raises(InvalidArgument, match=r"slots\[0\] must fit var \[9,5\], got \[9,5\]|fit"):
        ops.apply_rows("rowwise_adagrad", w, [other], gradient, hyper)
    with pytest.raises(InvalidArgument, match="slots must be float32, got double"):
        ops.apply_rows("adagrad", w, [tf.Variable(np.ones((N, D)))], gradient, hyper)
    with pytest.raises(InvalidArgument, match="var must be float32 or bfloat16, got double"):
        ops.apply_rows("sgd", tf.Variable(np.ones((N, D))), [], gradient, [0.1, 0.0])
    with pytest.raises(InvalidArgument, match="rule 'adam' is not known"):
        ops.apply_rows("adam", w, [], gradient, [0.1, 0.0])
    with pytest.raises(InvalidArgument, match="takes 1 slots and 3 hyper, got 0 and 2"):
        ops.apply_rows("adagrad", w, [], gradient, [0.1, 0.0])
    with pytest.raises(InvalidArgument, match="hyper must have rank 0"):
        ops.apply_rows("sgd", w, [], gradient, [[0.1], 0.0])


def test_a_missing_slot_leaves_the_table_unchanged():
    w = tf.Variable(random(N, D))
    before = w.numpy()
    gone = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[N, D], shared_name="never created")
    library = ops.apply_rows.__globals__["library"]
    hyper = [tf.constant(h) for h in RULES["adagrad"][0]]
    ids = tf.constant([0], tf.int64)
    for _ in range(2):
        with pytest.raises((tf.errors.NotFoundError, tf.errors.FailedPreconditionError)):
            library.twml_apply_rows(
                w.handle,
                [gone],
                ids,
                tf.ones([1, D]),
                hyper,
                tf.constant(0, tf.int64),
                rule="adagrad",
            )
    np.testing.assert_array_equal(w.numpy(), before)
    sgd(w, [0], np.ones((1, D)), 1.0)  # its lock is free
    np.testing.assert_array_equal(w.numpy()[0], before[0] - 1)


# Memory -----------------------------------------------------------------------------------------


def address(variable):
    """The address of the variable's buffer, from a NumPy view without a copy."""
    return variable.read_value()._numpy().__array_interface__["data"][0]


def test_a_table_is_written_in_place():
    w = tf.Variable(tf.zeros((1000, D)))  # not of an array: TensorFlow may share its memory
    splits = np.array([0, 2])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear([3, 5], [1.0, 2.0], splits, w))
        ops.apply_rows("sgd", w, [], tape.gradient(loss, w), [0.1, 0.0])

    held = [w.read_value(), w.read_value()]
    assert len({h._numpy().__array_interface__["data"][0] for h in held}) == 1  # reads do not copy
    del held
    before = address(w)
    for _ in range(3):
        step()
        ops.sparse_linear([3, 5], [1.0, 2.0], splits, w)
        sgd(w, [7], np.ones((1, D)), 0.1)
        assert address(w) == before


def test_a_table_whose_buffer_is_shared_is_copied_once():
    w = tf.Variable(tf.zeros((1000, D)))  # not of an array: TensorFlow may share its memory
    held = w.read_value()
    before = address(w)
    sgd(w, [7], np.ones((1, D)), 1.0)
    assert held.numpy().sum() == 0.0  # what was read does not change
    assert w.numpy()[7].tolist() == [-1.0] * D
    copied = address(w)
    assert copied != before
    sgd(w, [7], np.ones((1, D)), 1.0)
    assert address(w) == copied


# Fusion -----------------------------------------------------------------------------------------

FUSED, APPLY, GRADIENT = (
    "Twml>SparseLinearBackwardApply",
    "Twml>ApplyRows",
    "Twml>SparseLinearWeightsGrad",
)


def batch(rng, rows=40, width=12):
    splits = np.cumsum([0, *rng.integers(0, width, rows)])
    return rng.integers(0, N, splits[-1]), rng.normal(size=splits[-1]), splits


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_fused_and_sliced_updates_are_bit_identical(name, binary):
    rng = np.random.default_rng(4)
    ids, values, splits = batch(rng)
    values = None if binary else tf.constant(values, tf.float32)
    dy, tables = random(40, D, seed=5), initial(name)
    results = []
    for fuse in (True, False):
        got = variables(tables)

        @tf.function
        def step(got=got, fuse=fuse):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(ops.sparse_linear(ids, values, splits, got[0]) * dy)
            gradient = tape.gradient(loss, got[0])
            hyper = RULES[name][0]
            ops.apply_rows(rule_of(name), got[0], got[1:], gradient, hyper, fuse=fuse)

        graph = step.get_concrete_function().graph
        types = [op.type for op in graph.get_operations()]
        assert (types.count(FUSED), types.count(APPLY)) == ((1, 0) if fuse else (0, 1))
        for _ in range(3):
            step()
        results.append(bits(got))
    assert results[0] == results[1]


TOUCHES = {
    "untouched": (lambda g: g, True),
    "identity": (lambda g: tf.IndexedSlices(tf.identity(g.values), tf.identity(g.indices)), True),
    "scaled": (lambda g: tf.IndexedSlices(g.values * 1.0, g.indices), False),
    "other ids": (lambda g: tf.IndexedSlices(g.values, tf.reverse(g.indices, [0])), False),
    "clipped": (lambda g: tf.IndexedSlices(tf.clip_by_norm(g.values, 9.0), g.indices), False),
}


@pytest.mark.parametrize(("touch", "fuses"), TOUCHES.values(), ids=TOUCHES)
def test_only_an_unmodified_gradient_is_fused(touch, fuses):
    w = tf.Variable(random(N, D))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear([3, 5], [1.0, 2.0], [0, 2], w))
        gradient = touch(tape.gradient(loss, w))
        assert ops.is_sparse_linear_gradient(gradient) == fuses
        ops.apply_rows("sgd", w, [], gradient, [0.1, 0.0])

    types = [op.type for op in step.get_concrete_function().graph.get_operations()]
    assert (types.count(FUSED), types.count(APPLY)) == ((1, 0) if fuses else (0, 1))


def test_a_fused_update_that_is_refused_changes_nothing():
    got = variables(initial("adagrad"))
    before = bits(got)
    library = ops.apply_rows.__globals__["library"]
    hyper = [tf.constant(h) for h in RULES["adagrad"][0]]

    other = tf.raw_ops.TensorListReserve(
        element_shape=tf.constant([], tf.int32), num_elements=1, element_dtype=tf.float32
    )

    def fused(ids=(0, 1), values=(1.0, 1.0), splits=(0, 2), grad=None, input_dim=N, replaced=None):
        groups = library.twml_group_batch(
            tf.constant(ids, tf.int64),
            tf.constant(values, tf.float32),
            tf.constant(splits, tf.int64),
            tf.constant(input_dim, tf.int64),
            [],
        )
        library.twml_sparse_linear_backward_apply(
            got[0].handle,
            [got[1].handle],
            groups if replaced is None else replaced,
            tf.ones([1, D]) if grad is None else grad,
            hyper,
            tf.constant(0, tf.int64),
            rule="adagrad",
        )

    for changes, message in (
        ({"ids": (0, N)}, r"ids\[1\] = 9 is out of range"),
        ({"values": (1.0,)}, "values must have 2 items"),
        ({"splits": (0, 3)}, r"row_splits\[1\] must be the number of entries 2"),
        ({"splits": ()}, "row_splits must not be empty"),
        ({"grad": tf.ones([2, D])}, "grad must have one row for each of the batch's 1 rows, got 2"),
        ({"grad": tf.ones([1, D + 1])}, "as wide as the table's, 5, got 6"),
        ({"grad": tf.ones([D])}, "grad must have rank 2"),
        (
            {"ids": (0, N), "input_dim": N + 1},
            rf"groups must have ids in \[0, {N}\), got {N}",
        ),
        ({"replaced": other}, "groups must be an output of GroupBatch"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            fused(**changes)
        assert bits(got) == before
    fused()
    assert bits(got) != before


def traced_updates(batches, tables):
    """The types of the ops of a function that updates each table with the gradient of its batch."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            products = [ops.sparse_linear(*b, t) for b, t in zip(batches, tables, strict=True)]
            loss = tf.add_n([tf.reduce_sum(p * p) for p in products])
        for table, gradient in zip(tables, tape.gradient(loss, tables), strict=True):
            ops.apply_rows("sgd", table, [], gradient, [0.1, 0.0])

    graph = step.get_concrete_function().graph
    step()
    return [op.type for op in graph.get_operations()]


def test_tables_with_the_same_batch_share_its_groups():
    rng = np.random.default_rng(4)
    ids, values, splits = batch(rng)
    one = tuple(
        tf.constant(x, t) for x, t in ((ids, "int64"), (values, "float32"), (splits, "int64"))
    )
    other = (one[0], 2 * one[1], one[2])
    tables = [random(N, D), random(N, 1), random(N + 1, 2), random(N, D)]
    together = [tf.Variable(t) for t in tables]
    types = traced_updates([one, one, one, other], together)
    assert types.count(FUSED) == 4
    assert types.count("Twml>GroupBatch") == 2  # the other one has other values
    alone = [tf.Variable(t) for t in tables]
    for b, table in zip([one, one, one, other], alone, strict=True):
        traced_updates([b], [table])
    assert bits(together) == bits(alone)
