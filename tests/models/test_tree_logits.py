"""`dcn` and `deepfm` with boosted trees beside the net."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import _keras, core, export, models, ops
from twml_ops.data import Schema
from twml_ops.layers import BoostedTrees
from twml_ops.layers._category_counts import fold_of

pytest.importorskip("lightgbm")

SCHEMA = Schema(("a", "b"), ("c",), 0, "x")
ROWS = 1200
OPTIONS = {
    **{"units": 2, "hidden": (3,), "dropout": 0.0, "embedding_dropout": 0.0},
    "tree_ensembles": 5,
}


def examples(labels=1, signal=3.0, sparse=False):
    """A dataset whose label is the sign of the product of the numbers, with some noise."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(ROWS, 2)).astype(np.float32)
    features = {
        "row_keys": np.arange(ROWS),
        "continuous": numbers,
        "continuous_present": rng.random((ROWS, 2)) < 0.9,
        "categorical": rng.integers(0, 9, (ROWS, 1)) * 10**15,
    }
    if sparse:
        ids = rng.integers(0, 7, ROWS * 2)
        for name, flat in (("ids", ids), ("values", rng.normal(size=ROWS * 2).astype(np.float32))):
            features[f"sparse_{name}"] = tf.RaggedTensor.from_uniform_row_length(flat, 2)
    logit = signal * np.sign(numbers[:, 0] * numbers[:, 1])
    columns = [
        (rng.random((ROWS, 1)) < 1 / (1 + np.exp(-logit[:, None]))).astype(np.float32)
        for _ in range(labels)
    ]
    y = columns[0] if labels == 1 else dict(zip(("click", "sale"), columns, strict=True))
    return features, tf.data.Dataset.from_tensor_slices((features, y)).batch(500)


def trees_of(model):
    return [layer for layer in _keras.all_layers(model) if isinstance(layer, BoostedTrees)]


@pytest.fixture(
    scope="module",
    params=[(models.dcn, 0.5), (models.deepfm, 0.75)],
    ids=["dcn", "deepfm with another share"],
)
def model(request):
    build, share = request.param
    given = {} if share == 0.5 else {"tree_share": share}
    return build(SCHEMA, examples()[1], trees=True, **given, **OPTIONS)


def logits(probabilities):
    p = np.asarray(probabilities, np.float64)
    return np.log(p / (1 - p))


def test_inference_has_the_mean_of_the_logits_and_training_that_of_the_net(model):
    features, _ = examples()
    (trees,) = trees_of(model)
    net = tf.keras.Model(model.inputs, model.get_layer("logit").output)
    inputs = [features[i.name.split(":")[0]] for i in model.inputs]
    for training in (False, True):
        alone = net(inputs, training=training).numpy()
        got = logits(model(features, training=training))
        if training:
            np.testing.assert_allclose(got, alone, atol=1e-4)
        else:
            x = tf.keras.Model(model.inputs, trees.output)(inputs).numpy()
            share = model.get_layer("mean_logit").share
            np.testing.assert_allclose(got, (1 - share) * alone + share * x, atol=1e-4)
            both = models.averaged_logits(model)(features)
            np.testing.assert_allclose(both, np.concatenate([alone, x], 1), rtol=1e-6)
            assert np.ptp(x) > 1


@pytest.mark.one_tf
def test_no_label_of_a_fold_is_in_the_trees_of_its_ensemble():
    features, dataset = examples()
    labels = np.concatenate([y for _, y in dataset])
    folds = fold_of(features["row_keys"], 5, None, core.hash_ids, np.searchsorted)
    changed = labels.copy()
    for label in (0, 1):  # the base rate, which all columns are relative to, stays
        changed[np.flatnonzero((folds == 2) & (labels[:, 0] == label))[:20]] = 1 - label
    found = []
    for y in (labels, changed):
        tf.keras.utils.set_random_seed(0)
        batches = tf.data.Dataset.from_tensor_slices((features, y)).batch(500)
        (trees,) = trees_of(models.dcn(SCHEMA, batches, **OPTIONS))
        found.append(dict(zip(trees.state_names, trees.state_variables, strict=True)))
    x = np.random.default_rng(1).normal(size=(2000, trees.num_inputs)).astype(np.float32)

    def logits_of(nodes, fold, number):
        first = {**nodes, "roots": nodes["roots"][:, :number]}
        return ops.tree_sums(
            x, tf.fill([len(x)], tf.constant(fold, tf.int64)), **first, max_depth=8
        )

    for fold, same in ((2, True), (3, False)):
        # The labels of a fold decide on the number of its trees only.
        number = min(np.count_nonzero(nodes["roots"][fold]) for nodes in found)
        before, after = (logits_of(nodes, fold, number).numpy() for nodes in found)
        assert number > 5
        assert np.array_equal(before, after) == same


@pytest.mark.one_tf
def test_an_ensemble_has_the_columns_of_the_model_for_the_rows_of_its_fold(monkeypatch):
    schema = Schema(("a", "b"), ("c",), 7, "x")
    features, dataset = examples(sparse=True)
    known, adapt = {}, BoostedTrees.adapt

    def recorded(trees, data, columns, state):
        def record(inputs, fold):
            x, present = columns(inputs, fold)
            x[:, :2][~present] = np.nan
            known.setdefault(fold, []).append((inputs[-1], x))
            return columns(inputs, fold)

        adapt(trees, data, columns=record)

    monkeypatch.setattr(BoostedTrees, "adapt", recorded)
    model = models.dcn(schema, dataset, **OPTIONS)
    inputs = {i.name.split(":")[0]: i for i in model.inputs}
    x = tf.keras.Model(inputs, model.get_layer("tree_input").output)
    (batch, _) = next(iter(dataset.unbatch().batch(ROWS)))
    want = x({name: batch[name] for name in inputs}, training=True).numpy()
    want[:, :2][~features["continuous_present"]] = np.nan
    folds = fold_of(features["row_keys"], 5, None, core.hash_ids, np.searchsorted)
    for fold in range(5):
        got = {frozenset(np.unique(folds[keys])): (keys, x) for keys, x in known[fold]}
        keys, columns = got[frozenset([fold])]  # the row keys are the numbers of the rows
        np.testing.assert_allclose(columns, want[keys], rtol=1e-6)
        keys, columns = got[frozenset({0, 1, 2, 3, 4} - {fold})]
        np.testing.assert_allclose(np.delete(columns, [2, 3], 1), np.delete(want[keys], [2, 3], 1))
        assert (columns[:, 2:4] != want[keys, 2:4]).any()


@pytest.mark.one_tf
def test_the_trees_are_not_trained_with_the_net():
    _, dataset = examples()
    model = models.dcn(SCHEMA, dataset, **OPTIONS)
    (trees,) = trees_of(model)
    before = [v.numpy() for v in trees.state_variables]
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    first = model.evaluate(dataset, verbose=0)
    model.fit(dataset, epochs=2, verbose=0)
    assert model.evaluate(dataset, verbose=0) != first
    for value, variable in zip(before, trees.state_variables, strict=True):
        np.testing.assert_array_equal(value, variable)


@pytest.mark.one_tf
def test_there_are_no_trees_if_they_are_not_wanted_or_find_nothing():
    assert not trees_of(models.dcn(SCHEMA, examples()[1], trees=False, **OPTIONS))
    assert not trees_of(models.dcn(SCHEMA, examples(signal=0.0)[1], **OPTIONS))


@pytest.mark.one_tf
def test_deepfm_whose_trees_find_nothing_needs_no_row_keys():
    features, dataset = examples(signal=0.0)
    model = models.deepfm(SCHEMA, dataset, trees=True, **OPTIONS)
    assert not trees_of(model)
    assert models.layout_of(model) == "fields"
    del features["row_keys"]
    assert model(features).shape == (ROWS, 1)


@pytest.mark.one_tf
def test_only_the_trees_of_deepfm_have_the_statistics_of_categories():
    model = models.deepfm(SCHEMA, examples()[1], trees=True, crosses=[], **OPTIONS)
    (trees,) = trees_of(model)
    assert trees.num_inputs == 2 + 2  # numbers, statistics
    vectors, numbers = 3 * OPTIONS["units"], 2 * 2  # ranks and logarithms of the numbers
    assert model.get_layer("dense_0").kernel.shape[0] == vectors + numbers


@pytest.mark.one_tf
def test_each_label_has_trees():
    schema = Schema(("a", "b"), ("c",), 0, "x", labels=("click", "sale"))
    features, dataset = examples(labels=2)
    model = models.dcn(schema, dataset, **OPTIONS)
    assert len(trees_of(model)) == 2
    found = model(features)
    assert {name: p.shape[1] for name, p in found.items()} == {"click": 1, "sale": 1}
    assert not np.array_equal(found["click"], found["sale"])


@pytest.mark.one_tf
def test_few_raw_sparse_ids_are_columns_of_the_trees():
    schema = Schema(("a", "b"), ("c",), 7, "x")
    (trees,) = trees_of(models.dcn(schema, examples(sparse=True)[1], **OPTIONS))
    assert trees.num_inputs == 2 + 2 + 7  # numbers, statistics, ids


@pytest.mark.one_tf
def test_without_row_keys_there_are_no_trees_unless_they_are_asked_for():
    _, dataset = examples()

    def without_keys(features, labels):
        return {n: x for n, x in features.items() if n != "row_keys"}, labels

    dataset = dataset.map(without_keys)
    assert not trees_of(models.dcn(SCHEMA, dataset, statistics=False, **OPTIONS))
    with pytest.raises(ValueError, match="must have the feature row_keys, .* boosted trees"):
        models.dcn(SCHEMA, dataset, statistics=False, trees=True, **OPTIONS)


def test_files_and_exports_have_the_trees(model, tmp_path):
    features, _ = examples()
    want = model(features).numpy()
    model.save(tmp_path / "m.keras")
    np.testing.assert_allclose(tf.keras.models.load_model(tmp_path / "m.keras")(features), want)
    export.to_scorer(model, tmp_path / "scorer")
    flat = {name: x for name, x in features.items() if name != "row_keys"}
    got = core.Scorer.load(tmp_path / "scorer").predict(flat)
    np.testing.assert_allclose(got, want, atol=1e-6)
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(str(tmp_path / "stock")).signatures["serving_default"]
    (result,) = served(**{n: tf.constant(x) for n, x in flat.items()}).values()
    np.testing.assert_allclose(result, want, atol=1e-6)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="tree_share must be in"):
        models.dcn(SCHEMA, examples()[1], tree_share=share, trees=False, **OPTIONS)
    with pytest.raises(ValueError, match="share must be in"):
        models.MeanLogit(share)
