"""Interactions of the vectors of fields, and blocks of them, score as in Keras."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, export, models, research

pytestmark = pytest.mark.one_tf  # test_field_interactions.py has the layers

F, D, L = 5, 8, 3


def randomized(model):
    """Trained layers have no zeros and ones."""
    for i, v in enumerate(model.trainable_variables):
        v.assign(v + tf.random.stateless_normal(v.shape, [i, 5], stddev=0.1))
    return model


def assert_scores_as_keras(made, path, fields=F, width=D):
    x = tf.keras.Input((fields, width), name="x")
    model = randomized(tf.keras.Model(x, made(x)))
    export.to_scorer(model, path)
    scorer = core.Scorer.load(path)
    for rows in (1, 70):
        values = np.random.default_rng(rows).normal(size=(rows, fields, width)).astype(np.float32)
        want = model(tf.constant(values)).numpy()
        largest = np.abs(want).max()  # the rounding of sums of such numbers
        assert largest > 0.01
        got = scorer.predict({"x": values}, num_threads=1)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * max(1, largest))
        np.testing.assert_array_equal(got, scorer.predict({"x": values}, num_threads=3))
        np.testing.assert_array_equal(got, scorer.rank({}, {"x": values}))


MODULES = {
    "attention": lambda: research.FieldAttention(L),
    "attention_heads": lambda: research.FieldAttention(num_heads=4, hidden=5, epsilon=1e-2),
    "convolution": lambda: research.FieldConvolution(L),
    "convolution_even": lambda: research.FieldConvolution(filters=1, kernel_size=4),
    "convolution_wide": lambda: research.FieldConvolution(L, filters=20, kernel_size=9),
    "cross": lambda: research.FieldCross(),
    "cross_rank": lambda: research.FieldCross(L, rank=2),
    "dot": lambda: research.FieldDot(L),
    "dot_linear": lambda: research.FieldDot(hidden=()),
    "dot_deep": lambda: research.FieldDot(1, hidden=(6, 20)),
    "linear": lambda: research.FieldLinear(L),
    "linear_square": lambda: research.FieldLinear(),
}


@pytest.mark.parametrize("name", MODULES)
def test_each_interaction_scores_as_in_keras(tmp_path, name):
    tf.keras.utils.set_random_seed(2)
    assert_scores_as_keras(MODULES[name](), tmp_path / "s")


@pytest.mark.parametrize("ensemble", ["concat", "sum", "weighted"])
@pytest.mark.parametrize("outputs", [L, None])
def test_blocks_of_every_ensemble_score_as_in_keras(tmp_path, ensemble, outputs):
    tf.keras.utils.set_random_seed(3)
    block = research.DHENBlock(list(research.DHEN_MODULES), outputs, ensemble)
    assert_scores_as_keras(block, tmp_path / "s")


@pytest.mark.parametrize("ensemble", ["concat", "sum", "weighted"])
def test_blocks_of_one_module_and_within_blocks_score_as_in_keras(tmp_path, ensemble):
    tf.keras.utils.set_random_seed(3)
    inner = research.DHENBlock([research.FieldCross(2, rank=3), "linear"], 2, epsilon=0.1)
    outer = research.DHENBlock([inner], None, ensemble)
    assert_scores_as_keras(
        lambda x: research.DHENBlock(["dot"], 2, ensemble)(outer(x)), tmp_path / "s"
    )


def test_vectors_of_one_number_and_single_fields_score_as_in_keras(tmp_path):
    tf.keras.utils.set_random_seed(4)
    modules = [name for name in research.DHEN_MODULES if name != "dot"]
    for fields, width in ((1, 8), (6, 1), (1, 1)):
        made = [research.DHENBlock(modules, 2, e) for e in ("concat", "sum")]
        # The layer normalization of one number returns the offset.
        assert_scores_as_keras(
            lambda x, made=made: made[1](made[0](x)), tmp_path / f"{fields}{width}", fields, width
        )


class Doubled(tf.keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)


class Summed(research.field_interactions.FieldInteraction):
    def build_interaction(self, fields, width, outputs):
        pass

    def interact(self, x, outputs):
        return x


@pytest.mark.parametrize("kind", [Doubled, Summed])
def test_modules_of_a_user_are_refused_by_their_names(tmp_path, kind):
    x = tf.keras.Input((F, D), name="x")
    block = research.DHENBlock(["dot", kind(name="own")], F)
    model = tf.keras.Model(x, block(x))
    with pytest.raises(ValueError, match=f"layer 'own' is a {kind.__name__}; the scorer supports"):
        export.to_scorer(model, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_module_of_keras_scores_as_in_keras(tmp_path):
    dense = tf.keras.layers.Dense(D, "tanh", name="dense")
    assert_scores_as_keras(research.DHENBlock([dense, "linear"], F, "sum"), tmp_path / "s")


@pytest.mark.parametrize("members", [2, 3])
def test_mean_logits_of_ensembles_score_as_in_keras(tmp_path, members):
    made = []
    for i in range(members):
        x = tf.keras.Input((3,), name="x")
        made.append(tf.keras.Model(x, tf.keras.layers.Dense(2, "sigmoid")(x)))
        made[i].layers[-1].kernel.assign(tf.random.stateless_normal((3, 2), [i, 0]))
    model = models.ensemble(made, combination="mean_logit")
    export.to_scorer(model, tmp_path / "s")
    values = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    got = core.Scorer.load(tmp_path / "s").predict({"x": values})
    np.testing.assert_allclose(got, model(values), rtol=0, atol=1e-6)


def test_mean_logits_of_all_probabilities_score_as_in_keras(tmp_path):
    inputs = [tf.keras.Input((1,), name=name) for name in "ab"]
    model = tf.keras.Model(inputs, models.SigmoidOfMeanLogit()(inputs))
    export.to_scorer(model, tmp_path / "s")
    some = np.float32([0, 1e-30, 1e-7, 1e-3, 0.25, 0.5, 0.9, 1 - 1e-6, 1 - 1e-7, 1])
    a, b = (x.reshape(-1, 1) for x in np.meshgrid(some, some))
    got = core.Scorer.load(tmp_path / "s").predict({"a": a, "b": b})
    np.testing.assert_allclose(got, model([a, b]), rtol=0, atol=1e-6)
