"""A step groups the ids of a batch once, for all ops that need them grouped."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._library import is_native, library

pytestmark = pytest.mark.skipif(not is_native(), reason="stock ops group by themselves")

N, D = 40, 5
GROUPINGS = ("Twml>GroupIds", "Twml>GroupBatch")


def batch(seed=3, id_type=tf.int64):
    rng = np.random.default_rng(seed)
    splits = np.cumsum([0, 3, 0, 50, 1, 9])
    return (
        tf.constant(rng.integers(0, N - 3, splits[-1]), id_type),
        tf.constant(rng.normal(size=splits[-1]), tf.float32),
        tf.constant(splits, tf.int64),
    )


def max_norm(ids, values, state, bias, training):
    return ops.max_norm(ids, values, state, bias, training)


def decaying_max_norm(ids, values, state, bias, training):
    return ops.max_norm(ids, values, state, bias, training, decay=0.9)


def standardize(ids, values, state, bias, training):
    return ops.online_standardize(ids, values, state, bias, training)


class Model:
    """A normalization with a bias, and a deep and a wide table for its output."""

    def __init__(self, norm, use_bias=True, binary_wide=False):
        rng = np.random.default_rng(0)
        self.norm, self.binary_wide = norm, binary_wide
        self.state = tf.Variable(
            tf.zeros([N, 3], tf.float64) if norm is standardize else tf.zeros([N])
        )
        self.bias = tf.Variable(rng.normal(size=N), dtype=tf.float32) if use_bias else None
        self.tables = [
            tf.Variable(rng.normal(size=shape), dtype=tf.float32) for shape in ((N, D), (N + 2, 1))
        ]

    def variables(self):
        return [self.state, *self.tables, *([] if self.bias is None else [self.bias])]

    def step(self, ids, values, splits, *, training=True, scale=None):
        with tf.GradientTape() as tape:
            normed = self.norm(ids, values, self.state, self.bias, training)
            wide = None if self.binary_wide else normed
            products = [
                ops.sparse_linear(ids, v, splits, table)
                for table, v in zip(self.tables, (normed, wide), strict=True)
            ]
            loss = tf.reduce_sum(products[0] ** 2) + tf.reduce_sum(products[1] ** 2)
        trained = self.variables()[1:]
        for variable, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            if scale is not None:
                gradient = tf.IndexedSlices(
                    scale * gradient.values, gradient.indices, gradient.dense_shape
                )
            ops.apply_rows("sgd", variable, [], gradient, [0.1, 0.0])


def traced(model, **options):
    concrete = tf.function(lambda *b: model.step(*b, **options)).get_concrete_function(*batch())
    return concrete, concrete.graph.get_operations()


def types_of(operations, wanted):
    return [op.type for op in operations if op.type in wanted]


NORMS = [max_norm, decaying_max_norm, standardize]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [None, 0.5], ids=["fused", "by slices"])
def test_ids_are_sorted_once_in_a_step(norm, scale):
    _, operations = traced(Model(norm), scale=scale)
    assert sorted(types_of(operations, GROUPINGS)) == ["Twml>GroupBatch", "Twml>GroupIds"]
    consumers = {
        "Twml>GroupBatch": 1,
        "Twml>SumDuplicates": 1,
        "Twml>SparseLinearWeightsGrad": 2,  # pruned where the update is fused
        "Twml>MaxNorm": int(norm is decaying_max_norm),
        "Twml>OnlineStandardize": 1,
    }
    for op in operations:
        if op.type in consumers:
            assert op.get_attr("num_groups") == min(consumers[op.type], 1), op.type


@pytest.mark.parametrize("norm", NORMS)
def test_batches_with_other_values_share_the_order_of_the_ids(norm):
    _, operations = traced(Model(norm, binary_wide=True))
    assert types_of(operations, ["Twml>GroupIds"]) == ["Twml>GroupIds"]
    assert len(types_of(operations, ["Twml>GroupBatch"])) == 2


def test_a_batch_that_only_tables_use_is_sorted_with_its_values():
    _, operations = traced(Model(max_norm, use_bias=False))
    assert types_of(operations, GROUPINGS) == ["Twml>GroupBatch"]
    assert [op.get_attr("num_groups") for op in operations if op.type == "Twml>GroupBatch"] == [0]


@pytest.mark.parametrize("norm", NORMS)
def test_inference_groups_nothing(norm):
    model = Model(norm)
    call = tf.function(lambda i, v, s: norm(i, v, model.state, model.bias, False))
    operations = call.get_concrete_function(*batch()).graph.get_operations()
    assert types_of(operations, GROUPINGS) == []


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [None, 0.5], ids=["fused", "by slices"])
@pytest.mark.parametrize("id_type", [tf.int32, tf.int64])
def test_a_step_that_shares_is_bit_identical_to_one_that_does_not(norm, scale, id_type):
    in_graph, eager = Model(norm, binary_wide=True), Model(norm, binary_wide=True)
    step = tf.function(in_graph.step)
    for seed in range(3):
        step(*batch(seed, id_type), scale=scale)
        eager.step(*batch(seed, id_type), scale=scale)
    for got, want in zip(in_graph.variables(), eager.variables(), strict=True):
        assert got.numpy().tobytes() == want.numpy().tobytes()


def test_a_step_shares_for_an_empty_batch():
    model = Model(standardize)
    before = [v.numpy().tobytes() for v in model.variables()]
    tf.function(model.step)(tf.zeros([0], tf.int64), tf.zeros([0]), tf.zeros([3], tf.int64))
    assert [v.numpy().tobytes() for v in model.variables()] == before


@pytest.mark.parametrize("norm", NORMS)
def test_branches_and_loops_group_for_themselves(norm):
    """A grouping belongs to the graph of its branch or body."""

    def loss_of(model, choice, ids, values, splits):
        def product():
            normed = norm(ids, values, model.state, model.bias, True)
            return ops.sparse_linear(ids, normed, splits, model.tables[0])

        first = tf.cond(choice, product, lambda: 2 * product())
        total = tf.zeros_like(first)
        for _ in tf.range(2):
            total += product()
        return tf.reduce_sum(first**2) + tf.reduce_sum(total**2)

    results = []
    for in_graph in (True, False):
        model = Model(norm)

        def step(*given, model=model):
            with tf.GradientTape() as tape:
                loss = loss_of(model, *given)
            trained = [model.tables[0], model.bias]
            return [tf.convert_to_tensor(g) for g in tape.gradient(loss, trained)]

        step = tf.function(step) if in_graph else step
        results.append([step(tf.constant(c), *batch()) for c in (True, False)])
    for got, want in zip(tf.nest.flatten(results[0]), tf.nest.flatten(results[1]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_grouping_without_consumers_is_not_computed():
    ids, values, splits = batch()

    @tf.function
    def unused():
        library.twml_group_ids(ids, tf.constant(1, tf.int64))  # ids are out of range
        library.twml_group_batch(ids, values, splits, tf.constant(1, tf.int64), [])
        return tf.constant(7)

    assert unused() == 7


@pytest.mark.parametrize("norm", NORMS)
def test_constant_ids_can_be_grouped(norm):
    """TensorFlow replaces an op of constants by its output, which a grouping cannot be."""
    in_graph, eager = Model(norm), Model(norm)
    step = tf.function(lambda: in_graph.step([2, 0, 2], [1.0, 2.0, 4.0], [0, 2, 3]))
    for _ in range(2):
        step()
        eager.step([2, 0, 2], [1.0, 2.0, 4.0], [0, 2, 3])
    for got, want in zip(in_graph.variables(), eager.variables(), strict=True):
        assert got.numpy().tobytes() == want.numpy().tobytes()


def test_constant_ids_of_a_tensor_can_be_grouped():
    @tf.function
    def gradient():
        weights = tf.ones([3, 2])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            product = ops.sparse_linear([2, 0, 2], [1.0, 2.0, 4.0], [0, 2, 3], weights)
        return tf.convert_to_tensor(tape.gradient(product, weights))

    np.testing.assert_array_equal(gradient(), [[2, 2], [0, 0], [5, 5]])


def test_groups_of_other_ids_are_refused():
    ids, values, splits = batch()
    groups = [library.twml_group_ids(ids[1:], tf.constant(N, tf.int64))]
    of_int32 = [library.twml_group_ids(tf.cast(ids, tf.int32), tf.constant(N, tf.int64))]
    state, training = tf.Variable(tf.zeros([N])), tf.constant(True)
    calls = [
        lambda g: library.twml_sum_duplicates(ids, values[:, tf.newaxis], g),
        lambda g: library.twml_group_batch(ids, values, splits, tf.constant(N, tf.int64), g),
        lambda g: library.twml_max_norm(
            ids, values, state.handle, [], training, g, epsilon=0.1, nonfinite="error"
        ),
    ]
    for call in calls:
        with pytest.raises(tf.errors.InvalidArgumentError, match="groups must be made of the 63"):
            call(groups)
        for wrong in (of_int32, [*of_int32, *of_int32]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="of the same type"):
                call(wrong)
    np.testing.assert_array_equal(state, tf.zeros([N]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="groups must be made of the 63"):
        library.twml_sparse_linear_weights_grad(
            ids, values, splits, tf.ones([5, 2]), tf.constant(N, tf.int64), groups
        )
