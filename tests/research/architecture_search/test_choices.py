"""A choice at weights with a single 1 is the candidate, and otherwise a mixture."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import research
from twml_ops.research import architecture_search as search
from twml_ops.research.architecture_search.supernet import Gate

pytestmark = pytest.mark.one_tf


def hot(k, count):
    return tf.one_hot(k, count)


def test_a_dense_layer_has_the_first_columns_or_is_left_out():
    choice = search.DenseWidth("h", (0, 2, 4))
    x, y = tf.constant([[1.0, 2.0, 3.0]]), tf.constant([[5.0, 6.0, 7.0, 8.0]])
    np.testing.assert_array_equal(choice.combine([x, y], hot(0, 3)), [[1, 2, 3, 0]])
    np.testing.assert_array_equal(choice.combine([x, y], hot(1, 3)), [[5, 6, 0, 0]])
    np.testing.assert_array_equal(choice.combine([x, y], hot(2, 3)), y)
    mixed = choice.combine([x, y], tf.constant([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(mixed, [[0.5 + 2.5, 1 + 3, 1.5 + 1.75, 2]])


def test_an_input_that_is_wider_than_a_layer_keeps_its_width_without_it():
    choice = search.DenseWidth("h", (0, 1))
    x, y = tf.constant([[1.0, 2.0, 3.0]]), tf.constant([[5.0]])
    np.testing.assert_array_equal(choice.combine([x, y], hot(0, 2)), x)
    np.testing.assert_array_equal(choice.combine([x, y], hot(1, 2)), [[5, 0, 0]])


def test_vectors_are_masked_behind_their_width_and_further_fields_kept():
    vectors = tf.ones([2, 3, 4])
    weights = tf.stack([hot(0, 3), hot(1, 3)])
    masked = search.FieldWidths((1, 2, 4)).combine([vectors], weights)
    np.testing.assert_array_equal(masked[1], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]])


def test_rows_beyond_those_of_a_table_become_the_shared_vector():
    vectors, shared = tf.reshape(tf.range(1.0, 7.0), [3, 2, 1]), tf.zeros([3, 1, 1])
    rows = tf.constant([[-1], [2], [3]])
    choice = search.FieldRows((2, 5))
    small = choice.combine([vectors, shared, rows], hot(0, 2)[None])
    np.testing.assert_array_equal(small[:, :, 0], [[1, 2], [3, 4], [0, 6]])
    half = choice.combine([vectors, shared, rows], tf.constant([[0.5, 0.5]]))
    np.testing.assert_array_equal(half[:, :, 0], [[1, 2], [3, 4], [2.5, 6]])
    np.testing.assert_array_equal(choice.rows([12, 5]), [[4, 7], [4, 5]])


@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_gumbel_softmax_chooses_each_candidate_with_its_probability(temperature):
    tf.keras.utils.set_random_seed(0)
    gate = Gate(search.FieldWidths((1, 2, 3)), 20_000)
    gate.build(None)
    probabilities = np.array([0.1, 0.3, 0.6], np.float32)
    gate.logits.assign(np.tile(np.log(probabilities) + 2, [20_000, 1]))
    gate.temperature.assign(temperature)
    weights = gate.sample().numpy()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    chosen = np.bincount(weights.argmax(1), minlength=3) / 20_000
    np.testing.assert_allclose(chosen, probabilities, atol=0.015)
    assert (weights.max(1).mean() > 0.99) == (temperature < 0.1)
    np.testing.assert_allclose(gate.probabilities()[0], probabilities, rtol=1e-5)


def test_a_layer_of_the_user_is_an_interaction():
    choice = search.Interaction(research.FieldDot(2, hidden=(), name="products"))
    x = tf.keras.Input((3, 4))
    assert choice.chosen(x, False, "y") is None
    model = tf.keras.Model(x, choice.chosen(x, True, "y"))
    assert model.output_shape == (None, 2, 4)
    assert choice.name == "products"
    assert choice.size(True, (3, 4)) == 8
    assert choice.parameters(True, (3, 4)) == model.count_params()
    assert choice.flops(True, (3, 4)) == search.count_flops(model, (3, 4))
    assert choice.flops(False, (3, 4)) == choice.size(False, (3, 4)) == 0


def test_flops_are_those_of_matrix_products():
    dense = tf.keras.layers.Dense(5, activation="relu")
    assert search.count_flops(dense, (3,)) == 2 * 3 * 5
    convolution = tf.keras.layers.Conv2D(4, 3, padding="same")
    assert search.count_flops(convolution, (6, 5, 2)) == 2 * 6 * 5 * 4 * 9 * 2
    assert search.count_flops(lambda x: tf.einsum("bfd,bgd->bfg", x, x), (3, 4)) == 2 * 9 * 4
    assert search.count_flops(lambda x: tf.matmul(x, x, transpose_b=True), (3, 4)) == 2 * 9 * 4
    nested = tf.function(lambda x: tf.transpose(tf.matmul(x, x, transpose_a=True)))
    assert search.count_flops(lambda x: nested(x), (3, 4)) == 2 * 16 * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: search.DenseWidth("h", (4, 2)), "candidates of 'h' must be ascending"),
        (lambda: search.DenseWidth("h", ()), r"at least 0, got \(\)"),
        (lambda: search.DenseWidth("h", (0,)), "must have a positive width"),
        (lambda: search.FieldWidths((0, 1)), "of at least 1"),
        (lambda: search.FieldRows((1, 2.5)), "must be ascending integers"),
    ],
)
def test_candidates_that_are_no_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
