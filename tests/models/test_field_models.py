"""The models on fields, on every kind of features."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import ONE_TF, SLOW
from twml_ops import export, models
from twml_ops.data import Schema
from twml_ops.layers import CategoryRows, Cross, FieldLogarithms, FieldQuantiles
from twml_ops.models import _adapt_fields
from twml_ops.models._adapt_fields import FieldState, adapt_fields
from twml_ops.models._field_statistics import FieldStatistics
from twml_ops.optimizers import Adagrad

SMALL = {
    "dcn": {"units": 4, "hidden": (3,)},
    "deepfm": {"units": 4, "hidden": (3,)},
    "dhen": {"units": 4, "hidden": (3,), "depth": 2, "outputs": 2},
    "dlrm": {"units": 4, "hidden": (3,), "bottom": (3,)},
    "fm": {"units": 4},
    "logistic": {},
    "mmoe": {"units": 4, "experts": 2, "expert_units": 3, "towers": (3,), "dropout": 0.0},
    "shared_bottom": {"units": 4, "hidden": (3,), "towers": (3,)},
}
SCHEMAS = {
    "numbers": Schema(("a", "b"), (), 0, "x"),
    "categories": Schema((), ("c", "d"), 0, "x"),
    "bags": Schema((), ("s", "t"), 0, "x", bags=("s", "t"), bag_weights={"t": "w"}),
    "everything": Schema(("a", "b"), ("c", "t"), 50, "x", bags=("t",), labels=("click", "sale")),
}
# Other models have all their layers. (test_field_units.py trains and loads "dcn", too.)
PARTS_OF_OTHERS = ("dcn", "fm", "shared_bottom")
# Trained and loaded on both TensorFlows; there tests/layers/test_saving.py saves the layers of the
# others, and test_embedding_dropout.py loads four models.
ON_BOTH = ("deepfm", "mmoe")
every_model = pytest.mark.parametrize("name", SMALL)


def ragged(rng, rows, values):
    lengths = rng.integers(0, 4, rows)
    return tf.RaggedTensor.from_row_lengths(tf.constant(values(lengths.sum())), lengths)


def features_of(schema, rows, seed=0, name="fm"):
    """Random features that the model called `name` takes."""
    rng = np.random.default_rng(seed)

    def ids(n):
        return rng.integers(0, 9, n) * 10**17

    features = {}
    if schema.fields and models.layout_of(models.get(name)) == "keyed_fields":
        features["row_keys"] = np.arange(rows)
    if schema.continuous:
        features["continuous"] = rng.normal(size=(rows, 2)).astype(np.float32)
        features["continuous_present"] = rng.random((rows, 2)) < 0.8
    if schema.fields:
        table = ids((rows, len(schema.fields)))
        features["categorical"] = np.where(rng.random(table.shape) < 0.1, -1, table)
    for bag in schema.bags:
        features[f"bag_{bag}_ids"] = ragged(rng, rows, ids)
        if bag in schema.bag_weights:
            flat = features[f"bag_{bag}_ids"].flat_values
            weights = rng.random(len(flat)).astype(np.float32)
            features[f"bag_{bag}_values"] = features[f"bag_{bag}_ids"].with_flat_values(weights)
    if schema.sparse_dim:
        sparse = ragged(rng, rows, lambda n: rng.integers(0, schema.sparse_dim, n))
        values = rng.normal(size=len(sparse.flat_values)).astype(np.float32)
        features.update(sparse_ids=sparse, sparse_values=sparse.with_flat_values(values))
    return {k: v if isinstance(v, tf.RaggedTensor) else tf.constant(v) for k, v in features.items()}


def data_of(schema, rows=64, batch=16, weighted=False, name="fm"):
    rng = np.random.default_rng(1)
    labels = {n: rng.integers(0, 2, (rows, 1)).astype(np.float32) for n in schema.labels}
    weights = (rng.random(rows).astype(np.float32),) if weighted else ()
    target = labels if len(labels) > 1 else labels[schema.labels[0]]
    parts = features_of(schema, rows, name=name), target, *weights
    return tf.data.Dataset.from_tensor_slices(parts).batch(batch)


def build(name, schema, data=None):
    tf.keras.utils.set_random_seed(0)
    data = data_of(schema, name=name) if data is None else data
    return models.get(name)(schema, data, **SMALL[name])


def by_label(predicted):
    return predicted if isinstance(predicted, dict) else {"label": predicted}


def kinds_of_models():
    """Each model with all kinds of features, and a model with each kind alone; the rest is slow.

    The models have the code of their inputs in common.
    """
    others = zip(("dcn", "deepfm", "dlrm"), (k for k in SCHEMAS if k != "everything"), strict=True)
    kind_of = dict(others)
    for name in SMALL:
        alone = kind_of.get(name)
        for kind in SCHEMAS:
            both = kind == "everything" and name in ON_BOTH
            marks = [] if both else [ONE_TF] if kind in (alone, "everything") else [SLOW]
            yield pytest.param(name, kind, marks=marks)


@pytest.mark.parametrize(("name", "kind"), kinds_of_models())
def test_any_features_and_labels_train_and_come_back_from_a_file(name, kind, tmp_path):
    schema = SCHEMAS[kind]
    data = data_of(schema, weighted=kind == "everything", name=name)
    model = build(name, schema, data)
    features = features_of(schema, 7, seed=2, name=name)
    assert models.layout_of(model) == ("keyed_fields" if "row_keys" in features else "fields")
    assert {t.name.split(":")[0] for t in tf.nest.flatten(model.input)} == {*features}
    model.compile(Adagrad(0.1), "binary_crossentropy", jit_compile=False)
    losses = model.fit(data, epochs=12, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0]
    want = by_label(model(features))
    assert set(want) == set(schema.labels)
    path = str(tmp_path / "m.keras")
    model.save(path)
    got = by_label(tf.keras.models.load_model(path, compile=False)(features))
    for label in schema.labels:
        assert want[label].shape == (7, 1)
        np.testing.assert_allclose(got[label], want[label], rtol=1e-6)


def stock_exports():
    """All models but those whose parts others have; test_exports_take_no_row_keys exports dcn, and
    tests/research/test_scorer_interactions.py the layers of dhen.
    """
    for name in SMALL:
        rest = name in PARTS_OF_OTHERS or name == "dhen"
        mark = SLOW if rest else () if name == "dlrm" else ONE_TF
        yield pytest.param(name, marks=mark)


@pytest.mark.parametrize("name", [*stock_exports()])
def test_a_stock_export_predicts_the_same(name, tmp_path):
    schema = SCHEMAS["everything"]
    model = build(name, schema)
    for v in model.trainable_variables:
        v.assign(tf.random.stateless_normal(v.shape, [1, 2], stddev=0.1))
    features = features_of(schema, 7, seed=2, name=name)
    export.to_stock_tf(model, tmp_path / "stock")
    got, want = tf.saved_model.load(tmp_path / "stock")(features), model(features)
    for label in schema.labels:
        np.testing.assert_allclose(got[label], want[label], atol=1e-6)


@every_model
@pytest.mark.one_tf
def test_untrained_models_predict_about_the_base_rate(name):
    schema = SCHEMAS["categories"]
    labels = (np.arange(30) < 6).astype(np.float32)[:, None]
    features = features_of(schema, 30, name=name)
    data = tf.data.Dataset.from_tensors((features, labels))
    model = build(name, schema, data)
    (start,) = model.get_layer("logit").get_weights()
    assert start == pytest.approx(math.log(7 / 25))
    np.testing.assert_allclose(model(features), 7 / 32, rtol=0.3)


@every_model
@pytest.mark.one_tf
def test_the_same_seed_gives_the_same_model(name):
    schema = SCHEMAS["everything"]
    one, other = build(name, schema).get_weights(), build(name, schema).get_weights()
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_logit_of_a_factorization_machine_is_that_of_the_definition():
    schema = SCHEMAS["categories"]
    model = build("fm", schema)
    for v in model.trainable_variables:
        v.assign(tf.random.stateless_normal(v.shape, [3, 4]))
    features = features_of(schema, 5, seed=2)
    numbers = model.get_layer("categories")(features["categorical"])
    first, second = tf.unstack(model.get_layer("embedding")(numbers), axis=1)
    linear = model.get_layer("linear")(numbers).numpy()[:, 0]
    (bias,) = model.get_layer("logit").get_weights()
    logit = bias + linear + tf.reduce_sum(first * second, axis=1).numpy()
    np.testing.assert_allclose(model(features)[:, 0], 1 / (1 + np.exp(-logit)), rtol=1e-4)


def test_a_deep_and_cross_network_without_its_nets_is_the_logistic_regression():
    schema = SCHEMAS["everything"]
    linear = build("logistic", schema)
    model = models.dcn(schema, data_of(schema), statistics=False, **SMALL["dcn"])
    (kernel,) = model.get_layer("deep_logit").get_weights()
    model.get_layer("deep_logit").set_weights([0 * kernel])
    rng = np.random.default_rng(0)
    for layer in linear.layers:
        if layer.name.startswith("linear"):
            weights = [rng.normal(size=w.shape) for w in layer.get_weights()]
            layer.set_weights(weights)
            model.get_layer(layer.name).set_weights(weights)
    features = features_of(schema, 7, seed=2)
    got = model(features)
    for label, want in linear(features).items():
        np.testing.assert_allclose(got[label], want, rtol=1e-5)


@pytest.mark.one_tf
@pytest.mark.parametrize(("columns", "ranks"), [(100, [None, None]), (300, [64, 64])])
def test_the_cross_layers_of_many_columns_have_a_low_rank(columns, ranks):
    schema = Schema(tuple(f"x{i}" for i in range(columns)), (), 0, "y")
    x = np.random.default_rng(0).normal(size=(8, columns)).astype(np.float32)
    features = {"continuous": x, "continuous_present": np.full(x.shape, True)}
    data = tf.data.Dataset.from_tensor_slices((features, np.float32([[0], [1]] * 4))).batch(8)
    model = models.dcn(schema, data)
    crosses = [layer for layer in model.layers if isinstance(layer, Cross)]
    assert [layer.rank for layer in crosses] == ranks
    assert model.count_params() < 4_000 * columns


def test_raw_sparse_ids_have_a_vector_of_their_own_width():
    schema = Schema(("a", "b"), ("c",), 50, "x")
    model = models.dcn(schema, data_of(schema), units=4, sparse_units=7, statistics=False)
    assert model.get_layer("flat_input").output.shape[-1] == 3 * 4 + 7 + 2 * 2


@pytest.mark.parametrize(("dim", "width"), [(256, 256), (257, 32)])
def test_few_raw_sparse_features_are_a_vector_of_their_values(dim, width):
    schema = Schema((), (), dim, "x")
    model = models.dcn(schema, data_of(schema))
    name = "multi_hot" if dim == width else "embedding_sparse"
    x0 = tf.keras.Model(model.input, model.get_layer(name).output)
    found = x0(features_of(schema, 6)).numpy()
    assert found.shape == (6, width)
    if dim == width:
        norm = model.get_layer("sparse_norm")
        batch = features_of(schema, 6)
        ids, values = norm([batch["sparse_ids"], batch["sparse_values"]])
        for row, i, v in zip(found, ids.to_list(), values.to_list(), strict=True):
            want = np.zeros(dim)
            np.add.at(want, i, v)
            np.testing.assert_allclose(row, want, rtol=1e-6)


def test_statistics_of_a_training_row_leave_out_its_own_fold():
    """A field of which each category occurs once has nothing to learn from but its own label."""
    schema = Schema((), ("c", "d"), 0, "x")
    rows = 200
    labels = (np.arange(rows) % 2).astype(np.float32)[:, None]
    ids = np.stack([np.arange(rows), np.arange(rows) % 2], axis=1)
    features = {"categorical": tf.constant(ids), "row_keys": tf.range(rows, dtype=tf.int64)}
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(50)
    model = models.dcn(schema, data)
    means = tf.keras.Model(model.input, model.get_layer("target_means_0_centered").output)
    training = means(features, training=True).numpy()
    serving = means(features, training=False).numpy()
    assert len({*training[:, 0].tolist()}) == 5  # the base rate of the other folds
    assert abs(np.corrcoef(training[:, 0], labels[:, 0])[0, 1]) < 0.3
    assert abs(np.corrcoef(serving[:, 0], labels[:, 0])[0, 1] - 1) < 1e-3
    for found in (training, serving):
        assert np.corrcoef(found[:, 1], labels[:, 0])[0, 1] > 0.99


def test_statistics_need_row_keys():
    schema = SCHEMAS["categories"]
    with pytest.raises(ValueError, match="row_keys.*statistics=False"):
        models.dcn(schema, data_of(schema))


@pytest.mark.one_tf
def test_exports_take_no_row_keys(tmp_path):
    schema = SCHEMAS["everything"]
    model = build("dcn", schema)
    for v in model.trainable_variables:
        v.assign(tf.random.stateless_normal(v.shape, [1, 2], stddev=0.1))
    export.to_stock_tf(model, tmp_path / "stock", schema=schema)
    loaded = tf.saved_model.load(tmp_path / "stock")
    for signature in loaded.signatures.values():
        assert "row_keys" not in signature.structured_input_signature[1]
    serve = loaded.signatures["features"]
    features = features_of(schema, 7, seed=2, name="dcn")
    flat = {}
    for name, value in features.items():
        if isinstance(value, tf.RaggedTensor):
            flat[name] = value.flat_values
            flat[name.rpartition("_")[0] + "_row_splits"] = value.row_splits
        elif name != "row_keys":
            flat[name] = value
    got = serve(**flat)
    for label, want in model(features).items():
        np.testing.assert_allclose(got[label], want, atol=1e-6)


def test_an_expert_mixture_weighs_the_experts_by_the_gate_of_the_label():
    schema = SCHEMAS["everything"]
    model = build("mmoe", schema)
    names = ["expert_0_0", "expert_1_0", "gate_1", "mixture_1"]
    probe = tf.keras.Model(model.input, [model.get_layer(n).output for n in names])
    first, second, gate, mixture = (t.numpy() for t in probe(features_of(schema, 5)))
    np.testing.assert_allclose(gate.sum(axis=1), 1, rtol=1e-5)
    want = gate[:, :1] * first + gate[:, 1:] * second
    np.testing.assert_allclose(mixture, want, rtol=1e-4, atol=1e-6)


def test_a_category_that_the_data_do_not_contain_is_a_rare_one():
    schema = SCHEMAS["categories"]
    model = build("logistic", schema)
    rng = np.random.default_rng(0)
    model.get_layer("linear").set_weights(
        [rng.normal(size=(sum(model.get_layer("categories").num_rows), 1))]
    )
    unseen = [{"categorical": tf.constant([[i, -1]], tf.int64)} for i in (5, 2**61)]
    missing = {"categorical": tf.constant([[-1, -1]], tf.int64)}
    found = [model(x).numpy().item() for x in (*unseen, missing)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("name", ["fm", "deepfm", "dlrm"])
def test_products_of_a_single_field_are_refused(name):
    schema = Schema((), ("c",), 0, "x")
    with pytest.raises(ValueError, match="at least two fields|F of at least 2"):
        build(name, schema)


@every_model
def test_a_schema_without_features_is_refused(name):
    with pytest.raises(ValueError, match="at least one feature"):
        build(name, Schema((), (), 0, "x"), data_of(SCHEMAS["numbers"]))


@ONE_TF
def test_batches_of_another_layout_are_refused():
    ragged = {"continuous_ids": tf.ragged.constant([[0]]), "categorical_ids": tf.zeros([1])}
    dataset = tf.data.Dataset.from_tensors((ragged, tf.zeros([1, 1])))
    with pytest.raises(ValueError, match=r"layout \"fields\", with \['continuous', 'categ.*takes"):
        build("fm", Schema(("x",), ("c",), 0, "x"), dataset)


@ONE_TF
@pytest.mark.parametrize("change", ["nothing", "label", "category", "crosses"])
def test_layers_are_adapted_alike_whether_their_data_were_seen_before_or_not(change):
    schema = Schema(("a",), ("c", "d"), 0, "x")
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 9, (60, 2)) * 10**15, (rng.random((60, 1)) < 0.3) * 1.0

    def adapted(ids, labels, crosses, min_count):
        features = {
            "categorical": ids,
            "continuous": (ids[:, :1] / 10**15).astype(np.float32),
            "continuous_present": np.ones((60, 1), bool),
            "row_keys": np.arange(60),
        }
        state = FieldState(
            FieldQuantiles(1, 4),
            FieldLogarithms(1),
            CategoryRows(2, min_count),
            FieldStatistics(schema, crosses),
        )
        batches = tf.data.Dataset.from_tensor_slices((features, labels)).batch(25)
        found = adapt_fields(schema, batches, state)
        layers = [state.quantiles, state.logarithms, *state.statistics.layers(batches).means]
        variables = [v for layer in layers for v in layer.weights] + [
            v for layer in (state.categories, layers[-1]) for v in layer.state_variables
        ]
        return found, [np.asarray(tf.convert_to_tensor(v)) for v in variables]

    adapted(ids, labels, ["c*d"], 1)
    if change == "label":
        labels = 1 - labels
    if change == "category":
        ids = ids + 1
    crosses = [] if change == "crosses" else ["c*d"]
    found, arrays = adapted(ids, labels, crosses, 3)
    _adapt_fields._recent.clear()
    expected, others = adapted(ids, labels, crosses, 3)
    assert found == expected
    for a, b in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(a, b)
