"""Shapes that overflow or exceed the memory are errors."""

import json
import re
import sys

import pytest
import tensorflow as tf

from tests import forked
from twml_ops import ops
from twml_ops.ops._library import is_native

HUGE = 2**62
OVERFLOW = f"4 x {HUGE} x 4 bytes is larger than any memory"

pytestmark = pytest.mark.skipif(not is_native(), reason="stock ops have errors of their own")


def refused(message):
    return pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message))


def wide_table():
    """No rows, each of 2^62 columns: no memory at all."""
    return tf.reshape(tf.zeros([0]), [0, HUGE])


@pytest.mark.parametrize("make", [tf.identity, tf.Variable], ids=["tensor", "variable"])
def test_an_output_that_overflows_is_refused_with_its_size(make):
    with refused(f"output of {OVERFLOW}"):
        ops.sparse_linear(tf.zeros([0], tf.int64), None, [0] * 5, make(wide_table()))


def test_an_output_that_overflows_is_refused_with_its_size_in_a_group():
    batch = (tf.zeros([0], tf.int64), None, [0] * 5)
    with refused(f"output of {OVERFLOW}"):
        ops.grouped_sparse_linear([batch], [tf.Variable(wide_table())])


def test_a_batch_without_rows_is_multiplied_by_a_table_of_any_width():
    y = ops.sparse_linear(tf.zeros([0], tf.int64), None, [0], wide_table())
    assert y.shape == (0, HUGE)


def test_rows_that_cannot_be_counted_are_refused():
    var = tf.Variable(tf.reshape(tf.zeros([0]), [0, HUGE, HUGE]))
    gradient = tf.IndexedSlices(tf.reshape(tf.zeros([0]), [0, 1]), tf.zeros([0], tf.int64))
    with refused("var must have rows of less than 2^63 items"):
        ops.apply_rows("sgd", var, [], gradient, [0.1, 0.0])


def test_more_rows_than_memory_holds_are_refused_with_their_size():
    with pytest.raises(
        tf.errors.ResourceExhaustedError,
        match=f"row_splits of {2**50 + 1} x 8 bytes could not be allocated",
    ):
        ops.row_splits_from_indices(tf.zeros([0], tf.int64), 2**50)


def test_a_handle_without_a_variable_is_refused():
    handle = tf.Variable(tf.zeros([2, 2])).handle
    raw = ops.sparse_linear.__globals__["library"].twml_resource_sparse_linear

    @tf.function
    def call(number):
        none = tf.stack([handle])[:number]
        return raw([0], tf.zeros([0]), tf.constant([0, 1], tf.int64), none, binary=True)

    with refused("input 3 must be one variable, got 0"):
        call(tf.constant(0))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux' /proc")
def test_calls_with_changed_arguments_are_computed_as_by_stock_ops_or_refused():
    command = ["-m", "tests.fuzz.ops", "--child", "-1", "9", "--seconds", "600"]
    done = forked.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-3000:]
    assert "finding" not in done.stdout
    counts = json.loads(done.stdout.splitlines()[-1].removeprefix("counts "))
    ran = {name: of_op.get("ran", 0) for name, of_op in counts.items()}
    assert min(ran.values()) > 0  # the arguments before any change
    assert 2 * sum(ran.values()) > 9 * len(ran)  # most get past the checks of arguments
