"""The gradient of a product by its values reads the table when it is computed."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops
from twml_ops.ops import _library

IDS, VALUES, SPLITS = [1, 4], [3.0, 5.0], [0, 2]
pytestmark = pytest.mark.skipif(
    not _library.is_native(), reason="stock ops keep the rows that they have read"
)


def single(values, table):
    return ops.sparse_linear(IDS, values, SPLITS, table)


def grouped(values, table):
    return ops.grouped_sparse_linear([(IDS, values, SPLITS)], [table])[0]


UPDATES = {
    "assign": lambda table: table.assign(tf.fill([6, 1], 100.0)),
    "assign_add": lambda table: table.assign_add(tf.fill([6, 1], 98.0)),
    "scatter": lambda table: table.scatter_nd_update([[1], [4]], [[100.0], [100.0]]),
    "apply_rows": lambda table: ops.apply_rows(
        "sgd", table, [], tf.IndexedSlices(tf.constant([[-98.0], [-98.0]]), [1, 4]), [1.0, 0.0]
    ),
}


@pytest.mark.parametrize("product", [single, grouped])
@pytest.mark.parametrize("update", UPDATES)
def test_in_eager_mode_the_gradient_is_that_of_the_updated_table(product, update):
    values, table = tf.constant(VALUES), tf.Variable(tf.fill([6, 1], 2.0))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(values)
        y = product(values, table)
    np.testing.assert_array_equal(tape.gradient(y, values), [2.0, 2.0])
    UPDATES[update](table)
    np.testing.assert_array_equal(tape.gradient(y, values), [100.0, 100.0])


@pytest.mark.parametrize("product", [single, grouped])
@pytest.mark.parametrize("update", UPDATES)
def test_in_a_function_an_update_before_the_gradient_is_refused(product, update):
    values, table = tf.constant(VALUES), tf.Variable(tf.fill([6, 1], 2.0))

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = product(values, table)
        UPDATES[update](table)
        return tape.gradient(y, values)

    with pytest.raises(ValueError, match="must be computed before the table is updated"):
        run()


@pytest.mark.parametrize("product", [single, grouped])
def test_in_a_function_updates_before_the_product_and_after_the_gradient_are_allowed(product):
    values, table = tf.constant(VALUES), tf.Variable(tf.fill([6, 1], 2.0))

    @tf.function
    def run():
        found = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(values)
                y = product(values, table)
            by_table, by_values = tape.gradient(y, [table, values])
            ops.apply_rows("sgd", table, [], by_table, [1.0, 0.0])
            found.append(by_values)
        return found

    first, second = run()
    np.testing.assert_array_equal(first, [2.0, 2.0])
    np.testing.assert_array_equal(second, [2.0 - 3.0, 2.0 - 5.0])


def test_the_gradient_by_the_table_does_not_depend_on_updates():
    values, table = tf.constant(VALUES), tf.Variable(tf.fill([6, 1], 2.0))

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            y = single(values, table)
        table.assign_add(tf.ones([6, 1]))
        return tape.gradient(y, table).values

    np.testing.assert_array_equal(run(), [[3.0], [5.0]])
