"""An update keeps the control dependencies of its gradient, whether it is fused or not."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import distribute, ops, optimizers

v1 = tf.compat.v1
has_estimator = hasattr(tf, "estimator")
N, D, REPEATS = 40, 6, 20
IDS, SPLITS = [2, 3, 2, 7], [0, 3, 4]
Failed = tf.errors.InvalidArgumentError


def slices(gradient):
    """The same gradient behind Identity ops, as `tf.control_dependencies` are used."""
    return tf.IndexedSlices(
        tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape
    )


def around_values(gradient):
    return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)


def around_indices(gradient):
    return tf.IndexedSlices(gradient.values, tf.identity(gradient.indices), gradient.dense_shape)


def step_of(table, guarded, fuse=True, rule="sgd"):
    """A step whose gradient goes through `guarded(gradient, loss, good)`."""

    @tf.function
    def step(good):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear(IDS, None, SPLITS, table) ** 2)
        gradient = guarded(tape.gradient(loss, table), loss, good)
        ops.apply_rows(rule, table, [], gradient, [0.1, 0.0], fuse=fuse)

    return step


def table_of_ones():
    return tf.Variable(tf.ones([N, D]))


def assert_failing_steps_change_nothing(step, table):
    for _ in range(REPEATS):
        with pytest.raises(Failed):
            step(tf.constant(False))
        np.testing.assert_array_equal(table, np.ones([N, D]))


def asserting_on(what, wrap=slices):
    """A guard that asserts `good`, its message showing the loss or the gradient."""

    def guarded(gradient, loss, good):
        shown = {"loss": [loss], "gradient": [gradient.values]}[what]
        with tf.control_dependencies([tf.debugging.Assert(good, shown)]):
            return wrap(gradient)

    return guarded


@pytest.mark.parametrize("wrap", [slices, around_values, around_indices])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_failed_assertion_around_a_gradient_leaves_the_table_alone(what, wrap):
    table = table_of_ones()
    step = step_of(table, asserting_on(what, wrap))
    assert_failing_steps_change_nothing(step, table)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_an_assertion_that_holds_changes_no_bit_and_keeps_the_fusion(what, executed):
    table, plain = table_of_ones(), table_of_ones()
    with executed() as ran:
        step_of(table, asserting_on(what))(tf.constant(True))
    step_of(plain, lambda gradient, *_: gradient)(tf.constant(True))
    assert table.numpy().tobytes() == plain.numpy().tobytes()
    # An assertion that shows the gradient needs it; any other leaves it uncomputed.
    assert ran == ({"fused": 1} if what == "loss" else {"fused": 1, "gradient": 1})


def test_control_inputs_of_the_gradient_op_itself_are_kept():
    table = table_of_ones()

    @tf.function
    def step(good):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear(IDS, None, SPLITS, table))
        with tf.control_dependencies([tf.debugging.Assert(good, [loss])]):
            gradient = tape.gradient(loss, table)
        ops.apply_rows("sgd", table, [], gradient, [0.1, 0.0])

    assert_failing_steps_change_nothing(step, table)
    step(tf.constant(True))
    assert (table.numpy()[IDS] < 1).all()


def test_what_is_printed_before_an_update_is_the_state_before_it():
    table, seen = table_of_ones(), []

    def guarded(gradient, loss, good):
        del loss, good
        show = tf.py_function(lambda: seen.append(table.numpy()), [], [])
        with tf.control_dependencies([show]):
            return slices(gradient)

    step = step_of(table, guarded)
    for i in range(5):
        before = table.numpy()
        step(tf.constant(True))
        np.testing.assert_array_equal(seen[i], before)
        assert (table.numpy() != before).any()


def test_a_group_that_waits_for_the_gradient_does_not_store_it(executed):
    table = table_of_ones()

    def guarded(gradient, loss, good):
        del good
        with tf.control_dependencies([tf.group(gradient.values.op, loss)]):
            return slices(slices(gradient))

    with executed() as ran:
        step_of(table, guarded)(tf.constant(True))
    assert ran == {"fused": 1}


def test_a_checked_gradient_that_is_not_finite_leaves_the_table_alone():
    table = table_of_ones()

    def guarded(gradient, loss, good):
        del loss
        values = gradient.values * tf.where(good, 1.0, np.nan)
        return tf.IndexedSlices(
            tf.debugging.check_numerics(values, "gradient"), gradient.indices, gradient.dense_shape
        )

    step = step_of(table, guarded)
    for _ in range(REPEATS):
        with pytest.raises(Failed, match="gradient"):
            step(tf.constant(False))
        np.testing.assert_array_equal(table, np.ones([N, D]))


@pytest.mark.parametrize("limits", [{}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}])
def test_optimizers_keep_the_conditions_of_their_gradients(limits):
    table, bias = table_of_ones(), tf.Variable(tf.ones([D]))
    optimizer = optimizers.SGD(0.1, **limits)
    optimizer.build([table, bias])

    @tf.function
    def step(good):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear(IDS, None, SPLITS, table, bias) ** 2)
        gradient, by_bias = tape.gradient(loss, [table, bias])
        with tf.control_dependencies([tf.debugging.Assert(good, [loss])]):
            gradient, by_bias = slices(gradient), tf.identity(by_bias)
        optimizer.apply_gradients([(gradient, table), (by_bias, bias)])

    assert_failing_steps_change_nothing(step, table)
    step(tf.constant(True))
    assert (table.numpy()[IDS] < 1).all()


def test_a_failed_assertion_leaves_the_tables_of_all_replicas_alone():
    strategy = distribute.mirrored_strategy(2)
    with strategy.scope():
        table = table_of_ones()
        optimizer = optimizers.SGD(0.1)
        optimizer.build([table])

    @tf.function
    def step(good):
        def replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(ops.sparse_linear(IDS, None, SPLITS, table) ** 2)
            gradient = tape.gradient(loss, table)
            with tf.control_dependencies([tf.debugging.Assert(good, [loss])]):
                gradient = slices(gradient)
            optimizer.apply_gradients([(gradient, table)])

        strategy.run(replica)

    for _ in range(5):
        with pytest.raises(Failed):
            step(tf.constant(False))
        for copy in strategy.experimental_local_results(table):
            np.testing.assert_array_equal(copy, np.ones([N, D]))


def graph_optimizer():
    from twml_ops.estimator import GraphOptimizer

    return GraphOptimizer


@contextlib.contextmanager
def in_session(build):
    """A session of version 1 and what `build()` made in its graph."""
    with tf.Graph().as_default(), v1.Session() as session:
        made = build()
        session.run(v1.global_variables_initializer())
        yield session, made


def test_in_a_session_a_failed_assertion_leaves_the_table_alone():
    def build():
        table = v1.get_variable("table", [N, D], initializer=v1.ones_initializer())
        good = v1.placeholder(tf.bool, [])
        loss = tf.reduce_sum(ops.sparse_linear(IDS, None, SPLITS, table))
        (gradient,) = v1.gradients(loss, [table])
        with tf.control_dependencies([tf.debugging.Assert(good, [loss])]):
            gradient = slices(gradient)
        return table, good, ops.apply_rows("sgd", table, [], gradient, [0.1, 0.0])

    with in_session(build) as (session, (table, good, train)):
        for _ in range(REPEATS):
            with pytest.raises(Failed):
                session.run(train, {good: False})
            np.testing.assert_array_equal(session.run(table), np.ones([N, D]))


@pytest.mark.skipif(not has_estimator, reason="this TensorFlow has no tf.estimator")
@pytest.mark.parametrize("limits", [{}, {"clipnorm": 0.1}])
def test_in_a_session_nothing_is_updated_where_an_assertion_fails(limits):
    def build():
        table = v1.get_variable("table", [N, D], initializer=v1.ones_initializer())
        bias = v1.get_variable("bias", [D], initializer=v1.ones_initializer())
        good = v1.placeholder(tf.bool, [])
        loss = tf.reduce_sum(ops.sparse_linear(IDS, None, SPLITS, table, bias) ** 2)
        optimizer = graph_optimizer()(optimizers.SGD(0.1, **limits))
        (gradient, _), (by_bias, _) = optimizer.compute_gradients(loss, [table, bias])
        with tf.control_dependencies([tf.debugging.Assert(good, [loss])]):
            gradient = slices(gradient)
        return table, bias, good, optimizer.apply_gradients([(gradient, table), (by_bias, bias)])

    with in_session(build) as (session, (table, bias, good, train)):
        for _ in range(REPEATS):
            with pytest.raises(Failed):
                session.run(train, {good: False})
            for variable in (table, bias):
                np.testing.assert_array_equal(session.run(variable), np.ones(variable.shape))
        session.run(train, {good: True})
        assert (session.run(table)[IDS] < 1).all()


@pytest.mark.skipif(not has_estimator, reason="this TensorFlow has no tf.estimator")
def test_in_a_session_gradients_that_wait_for_each_other_are_still_fused():
    def build():
        table = v1.get_variable("table", [N, D], initializer=v1.ones_initializer())
        scale = v1.get_variable("scale", [4], initializer=v1.ones_initializer())
        product = ops.sparse_linear(IDS, tf.convert_to_tensor(scale), SPLITS, table)
        optimizer = graph_optimizer()(optimizers.SGD(0.1))
        # Its default is to make the gradients of one op, here by values and table, wait.
        return optimizer.minimize(tf.reduce_sum(product**2), var_list=[table, scale])

    options = v1.RunOptions(output_partition_graphs=True)
    metadata = v1.RunMetadata()
    with in_session(build) as (session, train):
        session.run(train, options=options, run_metadata=metadata)
    ran = [node.op for graph in metadata.partition_graphs for node in graph.node]
    assert ran.count("Twml>SparseLinearBackwardApply") == 1
    assert ran.count("Twml>SparseLinearWeightsGrad") == 0


@pytest.mark.parametrize("good", [False, True])
def test_a_gradient_used_in_a_condition_of_version_1_is_right(good):
    enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:

        def build():
            table = v1.get_variable("table", [N, D], initializer=v1.ones_initializer())
            choice = v1.placeholder(tf.bool, [])
            product = ops.sparse_linear(IDS, None, SPLITS, table)
            (gradient,) = v1.gradients(tf.reduce_sum(product), [table])

            def update():
                with tf.control_dependencies(
                    [ops.apply_rows("sgd", table, [], gradient, [0.1, 0.0])]
                ):
                    return tf.constant(1)

            return table, choice, v1.cond(choice, update, lambda: tf.constant(0))

        with in_session(build) as (session, (table, choice, result)):
            assert session.run(result, {choice: good}) == int(good)
            want = np.ones([N, D])
            np.subtract.at(want, np.array(IDS), 0.1 * good)
            np.testing.assert_allclose(session.run(table), want, rtol=1e-6)
    finally:
        if enabled:
            v1.enable_control_flow_v2()
