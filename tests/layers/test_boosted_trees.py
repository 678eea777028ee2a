"""`BoostedTrees`: the trees of LightGBM, trained out of fold."""

import ctypes
import json

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from twml_ops import core
from twml_ops.layers import BoostedTrees, CountStatistics, TargetStatistics, _tree_arrays
from twml_ops.layers._category_counts import fold_of

lightgbm = pytest.importorskip("lightgbm")

COLUMNS, OPTIONAL, FOLDS = 5, 2, 3
SMALL = {"num_folds": FOLDS, "max_trees": 6, "num_leaves": 6, "min_examples": 20, "seed": 4}


def data(rows=1500, seed=0):
    """Examples whose label depends on two columns together and on whether one is there."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
    present = rng.random((rows, OPTIONAL)) < 0.8
    signal = np.where(present[:, 0], np.sign(x[:, 0] * x[:, 3]), -1)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-2 * signal))).astype(np.float32)
    return x, present, np.arange(rows) * 7919, labels


def batches(x, present, keys, labels, size=400):
    for i in range(0, len(x), size):
        part = slice(i, i + size)
        yield [x[part], present[part], keys[part]], labels[part, np.newaxis]


def make(**options):
    return BoostedTrees(COLUMNS, OPTIONAL, **SMALL | options, name="trees")


@pytest.fixture(scope="module")
def adapted():
    layer = make()
    layer.adapt(batches(*data()))
    return layer


def log_loss(logits, labels):
    logits = np.ravel(logits)
    return np.mean(np.logaddexp(0, logits) - labels * logits)


def folds_of(keys, num_folds=FOLDS):
    return fold_of(keys, num_folds, None, core.hash_ids, np.searchsorted)


def skewed_categories(seed, rows):
    """ids [rows, 2], row keys, and labels that do not depend on the ids."""
    rng = np.random.default_rng(seed)
    ids = np.stack([np.minimum(rng.zipf(1.3, rows), 300) for _ in range(2)], axis=1)
    return ids, rng.integers(0, 1 << 60, rows), (rng.random(rows) < 0.2).astype(np.float64)


def out_of_fold_logits(ids, keys, labels, **options):
    """Logits [N] in training of trees of statistics of the categories."""
    statistics = [TargetStatistics(2), CountStatistics(2)]
    for layer in statistics:
        layer.adapt([((ids, keys), labels)])

    def columns(inputs, fold=None):
        x = [layer(tuple(inputs), training=True, without=fold) for layer in statistics]
        return np.concatenate(x, axis=1)

    trees = BoostedTrees(4, **options)
    trees.adapt([([ids, keys], labels)], columns=columns)
    return trees([columns([ids, keys]), keys], training=True).numpy()[:, 0]


def test_logits_are_those_of_lightgbm_trained_on_the_other_folds(adapted):
    x, present, keys, labels = data()
    order = np.argsort(core.hash_ids(keys, 62, 2), kind="stable")  # that of the training
    x, present, keys, labels = (column[order] for column in (x, present, keys, labels))
    holes = x.copy()
    holes[:, :OPTIONAL][~present] = np.nan
    parameters = {
        **{"objective": "binary", "learning_rate": 0.1, "num_leaves": 6, "max_depth": 8},
        **{"min_data_in_leaf": 20, "feature_fraction": 0.5, "bagging_fraction": 0.8},
        **{"bagging_freq": 1, "lambda_l2": 1.0, "seed": 4, "deterministic": True},
        **{"force_row_wise": True, "num_threads": 1, "verbosity": -1},
    }
    folds, want, total = folds_of(keys), np.zeros(len(x)), np.zeros(len(x))
    for fold in range(FOLDS):
        own = folds == fold
        train = lightgbm.Dataset(holes[~own], labels[~own], weight=np.ones((~own).sum()))
        booster = lightgbm.train(parameters, train, 6)  # six trees do not overfit
        logits = booster.predict(holes, raw_score=True)
        want[own], total = logits[own], total + logits
    got = adapted([x, present, keys], training=True)
    np.testing.assert_allclose(got[:, 0], want, atol=1e-5)
    np.testing.assert_allclose(adapted([x, present])[:, 0], total / FOLDS, atol=1e-5)


# Sparse columns, for which LightGBM has a buffer for each of its threads.
IN_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from twml_ops.layers._tree_arrays import TreeOptions, train_ensemble

def losses(seed):
    rng = np.random.default_rng(seed)
    x = ((rng.random((400, 60)) < 0.05) * rng.random((400, 60))).astype(np.float32)
    examples = x, (rng.random(400) < 0.3).astype(np.float64), np.ones(400)
    options = TreeOptions(8, 3, 7, 5, 0.1, seed)
    return train_ensemble(examples, examples, options).losses

alone = [losses(seed) for seed in range(4)]
with ThreadPoolExecutor(4) as pool:
    for seed, found in enumerate(pool.map(losses, [seed % 4 for seed in range(600)])):
        assert np.array_equal(found, alone[seed % 4])
"""


def test_ensembles_that_train_in_several_threads_do_not_change_one_another():
    done = forked.run(["-c", IN_THREADS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_trees_find_an_interaction_in_examples_that_they_have_not_seen(adapted):
    x, present, keys, labels = data()
    constant = log_loss(np.full(len(x), np.log(labels.mean() / (1 - labels.mean()))), labels)
    loss = log_loss(adapted([x, present, keys], training=True), labels)
    assert loss < 0.97 * constant
    assert adapted.held_out_gain == pytest.approx(1 - loss / constant, abs=5e-3)


def test_no_row_has_a_logit_of_trees_that_have_seen_its_label(adapted):
    x, present, keys, labels = data()
    own = folds_of(keys) == 1
    other = make()
    other.adapt(batches(x, present, keys, np.where(own, 1 - labels, labels)))
    before, after = (
        layer([x[own], present[own], keys[own]], training=True).numpy()
        for layer in (adapted, other)
    )
    # The labels of a fold decide on the number of its trees only.
    number = min(np.count_nonzero(v.numpy()[1]) for v in (adapted._roots, other._roots))
    if np.count_nonzero(adapted._roots.numpy()[1]) == np.count_nonzero(other._roots.numpy()[1]):
        np.testing.assert_array_equal(before, after)
    assert number > 0
    whole = other([x, present]).numpy()
    assert (whole != adapted([x, present]).numpy()).mean() > 0.9


def test_with_statistics_no_label_of_a_fold_is_in_its_logits_in_training():
    ids, keys, labels = skewed_categories(0, 2000)
    options = {"max_trees": 1, "min_examples": 20}  # labels decide on the number of trees
    before = out_of_fold_logits(ids, keys, labels, **options)
    folds = folds_of(keys, 5)
    for row in (3, 700, 1500):
        flipped = labels.copy()
        flipped[row] = 1 - labels[row]
        after = out_of_fold_logits(ids, keys, flipped, **options)
        own = folds == folds[row]
        np.testing.assert_array_equal(after[own], before[own])
        assert (after[~own] != before[~own]).any()


def test_on_noise_out_of_fold_logits_of_statistics_do_not_follow_the_labels():
    scores = []
    for seed in range(4):
        ids, keys, labels = skewed_categories(seed, 8000)
        logits = out_of_fold_logits(ids, keys, labels, max_trees=1).astype(np.float64)
        folds = folds_of(keys, 5)
        for fold in range(5):  # the constants of the folds differ, too
            logits[folds == fold] -= logits[folds == fold].mean()
        residuals = labels - labels.mean()
        scores.append(logits @ residuals / np.sqrt(logits @ logits * residuals.var()))
    # Each has the standard deviation 1 if there is no leak. Without `without` the sum is 13.
    assert abs(np.sum(scores)) < 3 * np.sqrt(len(scores))


def test_columns_are_computed_for_the_rows_of_each_fold_and_of_its_ensemble():
    x, present, keys, labels = data(600)
    plain, chunked = make(), make()
    plain.adapt(batches(x, present, keys, labels))

    def columns(inputs, fold):
        numbers, there, row_keys, row = inputs[0], inputs[1], inputs[-1], inputs[2]
        np.testing.assert_array_equal(keys[row], row_keys)
        own = folds_of(row_keys) == fold
        assert own.all() or not own.any()
        return [numbers, there]

    chunked.adapt([([x, present, np.arange(600), keys], labels)], columns=columns)
    for a, b in zip(plain.state_variables, chunked.state_variables, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"x must have the shape \[B, 5\]"):
        make().adapt([([x, keys], labels)], columns=lambda inputs, fold: inputs[0][:, :4])


def test_the_order_of_the_data_does_not_matter(adapted):
    columns = data()
    order = np.random.default_rng(1).permutation(len(columns[0]))
    other = make()
    other.adapt(batches(*(column[order] for column in columns), size=133))
    for a, b in zip(adapted.state_variables, other.state_variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("change", ["nothing", "x", "labels", "seed"])
def test_equal_examples_and_options_have_the_remembered_trees_and_others_do_not(adapted, change):
    x, present, keys, labels = data()
    x[0, 0] += 1000.0 * (change == "x")
    labels[0] = 1 - labels[0] if change == "labels" else labels[0]
    layer = make(seed=5 if change == "seed" else 4)
    layer.adapt(batches(x, present, keys, labels))
    _tree_arrays._recent.clear()
    fresh = make(seed=layer.seed)
    fresh.adapt(batches(x, present, keys, labels))
    for variable, expected in zip(layer.state_variables, fresh.state_variables, strict=True):
        np.testing.assert_array_equal(variable, expected)
    assert layer.held_out_gain == fresh.held_out_gain


def test_remembered_trees_of_the_same_origin_need_no_columns():
    x, present, keys, labels = data()
    calls = []

    def nodes(factor):
        def columns(inputs, fold):
            calls.append(fold)
            return [inputs[0] * factor, inputs[1]]

        layer = make(seed=6)
        layer.adapt(batches(x, present, keys, labels), columns=columns, state=[factor])
        return [variable.numpy() for variable in layer.state_variables], len(calls)

    first, called = nodes(np.float32(1))
    again, called_again = nodes(np.float32(1))
    other, called_at_last = nodes(np.float32(-2))
    assert 0 < called == called_again < called_at_last
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_of_many_examples_the_trees_are_made_of_a_sample_by_the_row_keys():
    x, present, keys, labels = data()
    kept = np.sort(np.argsort(core.hash_ids(keys, 62, 2), kind="stable")[:600])
    sampled, small = make(), make()
    sampled.adapt(batches(x, present, keys, labels, size=100), max_examples=600)
    small.adapt(batches(*(column[kept] for column in (x, present, keys, labels))))
    for a, b in zip(sampled.state_variables, small.state_variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_eager_mode_a_function_and_a_symbolic_training_argument_agree(adapted):
    x, present, keys, _ = data(80)

    @tf.function
    def call(x, present, keys, training):
        return adapted([x, present, keys], training=training)

    for training in (False, True):
        want = adapted([x, present, keys], training=training)
        np.testing.assert_array_equal(call(x, present, keys, training), want)
        np.testing.assert_array_equal(call(x, present, keys, tf.constant(training)), want)


def test_without_out_of_fold_training_equals_inference(adapted):
    x, present, keys, labels = data(600)
    layer = make(out_of_fold=False)
    layer.adapt(batches(x, present, keys, labels))
    np.testing.assert_array_equal(layer([x, present], training=True), layer([x, present]))


def test_a_nan_is_a_missing_number_in_each_column(adapted):
    x, present, _, _ = data(50)
    holes, there = x.copy(), np.ones_like(present)
    holes[:, :OPTIONAL][~present] = np.nan
    np.testing.assert_array_equal(adapted([holes, there]), adapted([x, present]))
    holes[:, 4] = np.nan
    assert np.isfinite(adapted([holes, there])).all()


@pytest.mark.parametrize("labels", [0.0, 1.0])
def test_labels_of_one_class_make_a_constant(labels):
    x, present, keys, _ = data(300)
    layer = make()
    layer.adapt(batches(x, present, keys, np.full(len(x), labels, np.float32)))
    logits = layer([x, present]).numpy()
    assert np.ptp(logits) == 0
    assert (logits > 0).all() == bool(labels)
    assert layer.held_out_gain == 0


def test_weights_count_like_repeated_rows_in_the_constant():
    x, present, keys, labels = data(30)  # too few for a tree
    layer = make()
    layer.adapt([([x, present, keys], labels, np.where(labels > 0, 3.0, 1.0))])
    folds = folds_of(keys)
    want = 0.0
    for fold in range(FOLDS):
        y = labels[folds != fold]
        want += np.log((3 * y.sum() + 0.5) / ((1 - y).sum() + 0.5)) / FOLDS
    np.testing.assert_allclose(layer([x, present]), want, rtol=1e-6)


def test_soft_labels_are_learned():
    x, present, keys, labels = data()
    soft = 0.1 + 0.8 * labels
    layer = make()
    layer.adapt(batches(x, present, keys, soft))
    assert 0.01 < layer.held_out_gain < 1


def test_a_model_file_has_the_trees(adapted, tmp_path):
    x, present, _, _ = data(40)
    inputs = [tf.keras.Input((COLUMNS,)), tf.keras.Input((OPTIONAL,), dtype="bool")]
    trees = make(out_of_fold=False)
    trees.adapt(batches(*data(600)))
    model = tf.keras.Model(inputs, trees(inputs))
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded([x, present]), model([x, present]))
    model.save_weights(tmp_path / "w.weights.h5")
    other = tf.keras.models.clone_model(model)
    other.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(other([x, present]), model([x, present]))


def test_fewer_ensembles_than_folds_are_the_first_ones(adapted):
    x, present, keys, labels = data()
    some = make(num_ensembles=2, out_of_fold=False)
    some.adapt(batches(x, present, keys, labels))
    folds = folds_of(keys)
    mean = np.zeros((len(x), 1), np.float32)
    for fold in (0, 1):  # in training a row of the fold has the logits of its ensemble
        of_fold = keys[folds == fold][0]
        mean += adapted([x, present, np.full_like(keys, of_fold)], training=True) / 2
    np.testing.assert_allclose(some([x, present]), mean, atol=1e-6)
    assert BoostedTrees.from_config(some.get_config()).num_ensembles == 2


FINER = {"num_leaves": 40, "min_examples": 5}


@pytest.mark.parametrize(("steps", "chosen"), [(30, FINER), (2, {})])
def test_an_alternative_is_taken_if_the_folds_have_a_lower_loss_with_it(steps, chosen):
    rng = np.random.default_rng(1)
    x, present, keys, _ = data(1500)
    positive = rng.random(steps) < 0.5 if steps > 2 else np.array([0.3, 0.7]) > 0.5
    step = np.clip(((x[:, 0] + 2) / 4 * steps).astype(int), 0, steps - 1)
    labels = (rng.random(1500) < np.where(positive[step], 0.8, 0.2)).astype(np.float32)
    both, alone = make(max_trees=40, alternatives=[FINER]), make(max_trees=40, **chosen)
    for layer in (both, alone):
        layer.adapt(batches(x, present, keys, labels))
    for state, expected in zip(both.state_variables, alone.state_variables, strict=True):
        np.testing.assert_array_equal(state, expected)
    assert both.held_out_gain == alone.held_out_gain


def test_trees_of_an_alternative_may_be_deeper_than_the_others(adapted):
    x, present, keys, labels = data()
    deep = {"num_leaves": 40, "min_examples": 5, "max_depth": 12}
    layer, alone = make(max_depth=1, alternatives=[deep]), make(**deep)
    for some in (layer, alone):
        some.adapt(batches(x, present, keys, labels))
    np.testing.assert_array_equal(layer([x, present]), alone([x, present]))
    copy = BoostedTrees.from_config(layer.get_config())
    assert (copy.depth, copy.alternatives) == (12, [deep])
    assert json.loads(json.dumps(layer.get_config()))["alternatives"] == [deep]


def test_errors_name_the_argument(adapted):
    x, present, keys, labels = data(30)
    for options, message in (
        ({"num_folds": 1}, "num_folds must be at least 2, got 1"),
        ({"num_leaves": 1}, "num_leaves must be at least 2, got 1"),
        ({"learning_rate": 0.0}, "learning_rate must be in"),
        ({"max_trees": 0}, "max_trees"),
        ({"alternatives": [{"num_leaves": 1}]}, "num_leaves must be at least 2, got 1"),
        ({"alternatives": [{"seed": 1}]}, "alternatives must have some of"),
        ({"num_ensembles": 2}, r"num_ensembles must be in \[3, 3\] with num_folds = 3"),
        ({"num_ensembles": 4, "out_of_fold": False}, r"num_ensembles must be in \[1, 3\]"),
        ({"num_ensembles": 0, "out_of_fold": False}, "num_ensembles"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options)
    with pytest.raises(ValueError, match="num_optional must be in"):
        BoostedTrees(2, 3)
    with pytest.raises(ValueError, match="is not adapted"):
        make()([x, present])
    with pytest.raises(ValueError, match="row keys in training"):
        adapted([x, present], training=True)
    with pytest.raises(ValueError, match=r"x must have the shape \[B, 5\]"):
        adapted([x[:, :4], present])
    with pytest.raises(ValueError, match=r"present must be bool \[B, 2\]"):
        adapted([x, present[:, :1]])
    with pytest.raises(ValueError, match="too many"):
        adapted([x, present, keys, keys])
    for element, message in (
        (([x, present], labels), "row keys"),
        (([x, present, keys], labels[:9]), "labels must have the shape"),
        (([x, present, keys], labels + 1), "labels must be finite and in"),
        (([x, present, keys], labels, -labels), "weights must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            make().adapt([element])
    with pytest.raises(ValueError, match="at least one example"):
        make().adapt([])


class _Recorder:
    """LightGBM's library, whose calls that take parameters are recorded."""

    def __init__(self, library):
        self._library, self.calls = library, []

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def call(*arguments):
            if any(part in name for part in ("CreateFrom", "BoosterCreate", "PredictFor", "Reset")):
                texts = [a.value.decode() for a in arguments if isinstance(a, ctypes.c_char_p)]
                self.calls.append((name, " ".join(texts)))
            return function(*arguments)

        return call


@pytest.mark.one_tf
def test_every_call_says_the_number_of_threads_which_lightgbm_keeps_for_the_process(monkeypatch):
    recorder = _Recorder(lightgbm.basic._LIB)
    for module in (lightgbm.basic, lightgbm.engine):
        if hasattr(module, "_LIB"):
            monkeypatch.setattr(module, "_LIB", recorder)
    make().adapt(batches(*data()))
    assert {"LGBM_BoosterCreate", "LGBM_BoosterPredictForMat"} <= {
        name for name, _ in recorder.calls
    }
    assert [call for call in recorder.calls if "num_threads=1" not in call[1].split()] == []
