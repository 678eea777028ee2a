"""The scorer without TensorFlow agrees with Keras."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.core.numpy_field_steps import dequantized
from tests.export.conftest import N, batch, build, ragged
from tests.models.test_field_models import SCHEMAS, features_of
from tests.models.test_field_models import build as field_model
from tests.pairwise import pairwise
from twml_ops import core, export, layers, models, research
from twml_ops.data import Schema
from twml_ops.export.tables import store_rows

WITHOUT_TENSORFLOW = """
import sys, json
sys.modules["tensorflow"] = None
from twml_ops.core import Scorer
import numpy as np
with np.load(sys.argv[2]) as a:
    print(json.dumps(Scorer.load(sys.argv[1]).predict(a["ids"], a["values"], a["splits"]).tolist()))
"""


def scorer_of(model, path, **options):
    export.to_scorer(model, path, **options)
    return core.Scorer.load(path)


@pytest.mark.parametrize(("partitions", "axis"), [(1, "row"), (3, "row"), (2, "column")])
def test_every_layer_of_the_package_scores_as_in_keras(tmp_path, partitions, axis):
    model = build(partitions, axis)
    scorer = scorer_of(model, tmp_path / "s")
    for rows, seed in ((7, 0), (1, 3), (50, 4)):
        ids, values, splits = batch(rows, seed)
        got = scorer.predict(ids, values, splits)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, model(ragged(ids, values, splits)), rtol=0, atol=1e-6)
    named = {"f_ids": ids, "f_values": values, "f_row_splits": splits}
    assert sorted(scorer.inputs) == sorted(named)
    np.testing.assert_array_equal(scorer.predict(named), got)


def test_the_output_has_the_name_of_the_model_or_the_given_one(tmp_path, model):
    assert scorer_of(model, tmp_path / "a").output_name == model.output_names[0]
    assert scorer_of(model, tmp_path / "b", output_name="p").output_name == "p"


def test_an_export_with_a_base_has_its_changed_rows(tmp_path):
    inputs = tf.keras.Input([None], dtype="int64", ragged=True, name="x_ids")
    layer = layers.SparseLinear(16, 20_000)
    model = tf.keras.Model(inputs, layer(inputs))
    export.to_scorer(model, tmp_path / "1")
    table = layer.get_weights()[0]
    table[[3, 5]] += 1
    layer.set_weights([table, *layer.get_weights()[1:]])
    scorer = scorer_of(model, tmp_path / "2", base=tmp_path / "1")
    assert json.loads((tmp_path / "2" / "scorer.json").read_text())["base"]["folder"] == "1"
    np.testing.assert_array_equal(scorer.predict([3, 4, 5], row_splits=[0, 1, 2, 3]), table[3:6])


def test_one_row_needs_no_offsets(tmp_path, model):
    scorer = scorer_of(model, tmp_path / "s")
    ids, values, _ = batch(1, 0)
    alone = scorer.predict([3, 5], [0.5, 2.0])
    np.testing.assert_array_equal(alone, scorer.predict([3, 5], [0.5, 2.0], [0, 2]))
    assert scorer.predict(ids[:0], values[:0]).shape == (1, 1)


def test_it_runs_without_tensorflow(tmp_path, model):
    export.to_scorer(model, tmp_path / "s")
    ids, values, splits = batch()
    np.savez(tmp_path / "in.npz", ids=ids, values=values, splits=splits)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, tmp_path / "s", tmp_path / "in.npz"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    want = model(ragged(ids, values, splits))
    np.testing.assert_allclose(json.loads(done.stdout), want, rtol=0, atol=1e-6)


ACTIVATIONS = [
    "elu",
    "exponential",
    "gelu",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
    "linear",
]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_the_layers_of_a_dense_net(tmp_path, activation):
    tf.keras.utils.set_random_seed(3)
    ids = tf.keras.Input((None,), dtype="int64", ragged=True, name="x_ids")
    side = tf.keras.Input((4,), name="side")
    y = layers.SparseLinear(6, N, activation=activation)(ids)
    normalized = tf.keras.layers.BatchNormalization(scale=activation != "relu")(side)
    z = tf.keras.layers.Dense(6, activation=activation, use_bias=False)(normalized)
    z = tf.keras.layers.Activation(activation)(z)
    both = tf.keras.layers.Concatenate()([y, z, tf.keras.layers.Multiply()([y, z])])
    model = tf.keras.Model([ids, side], tf.keras.layers.Dense(2)(both))
    for v in model.non_trainable_variables:  # the moments, as trained
        v.assign(tf.random.uniform(v.shape, 0.5, 2) if v.dtype == "float32" else v)
    flat, _, splits = batch()
    x = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32) * 3
    scorer = scorer_of(model, tmp_path / "s")
    got = scorer.predict({"x_ids": flat, "x_row_splits": splits, "side": x})
    want = model([ragged(flat, flat, splits)[0], tf.constant(x)])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="ids must be a mapping with the inputs"):
        scorer.predict(flat)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("stacked", [False, True])
def test_interactions_score_as_in_keras(tmp_path, rank, stacked):
    tf.keras.utils.set_random_seed(4)
    ids, values = (
        tf.keras.Input((None,), dtype=t, ragged=True, name=f"x_{n}")
        for n, t in (("ids", "int64"), ("values", "float32"))
    )
    side = tf.keras.Input((3, 4), name="side")
    names = ("b", "a", "c")
    tables = {n: layers.SparseTable(N, 4, "random_normal") for n in names[:2]}
    grouped = layers.GroupedSparseLinear(tables, {"b": "b", "a": "a", "c": "a"})
    fields = grouped({n: (ids, values) for n in names})
    joined = tf.keras.layers.Concatenate()([fields[n] for n in names])
    random = {"bias_initializer": "random_normal"}
    crossed = layers.Cross(rank, activation="tanh", diag_scale=0.5, **random)(joined)
    crossed = layers.Cross(rank, **random)(joined, crossed)
    pairs = layers.FactorizationMachine(pool=False)(fields)
    alone = layers.FactorizationMachine()(side if stacked else [fields["b"], fields["c"]])
    parts = [crossed, pairs, alone]
    if stacked:
        parts.append(research.TowerModule(0.5, rank=rank, num_crosses=2)(side))
    out = tf.keras.layers.Concatenate()(parts)
    inputs = [ids, values, side] if stacked else [ids, values]
    model = tf.keras.Model(inputs, out)
    flat, weights, splits = batch()
    x = np.random.default_rng(1).normal(size=(7, 3, 4)).astype(np.float32)
    got_inputs = {"x_ids": flat, "x_values": weights, "x_row_splits": splits}
    got_inputs |= {"side": x} if stacked else {}
    want = model([*ragged(flat, weights, splits), *([tf.constant(x)] if stacked else [])])
    got = scorer_of(model, tmp_path / "s").predict(got_inputs)
    assert np.abs(want).max() > 0.01
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_sparse_mlp_scores_as_in_keras(tmp_path):
    schema = Schema(("a", "b"), ("c",), 50, "x")
    rng = np.random.default_rng(2)
    flat, rows = {}, 30
    for name, width, size in (("continuous", 2, 2), ("categorical", 1, 1 << 40), ("sparse", 6, 50)):
        flat[f"{name}_ids"] = rng.integers(0, size, rows * width)
        flat[f"{name}_row_splits"] = np.arange(rows + 1) * width
        if name != "categorical":
            flat[f"{name}_values"] = rng.normal(size=rows * width).astype(np.float32)
    features = {
        n: tf.RaggedTensor.from_row_splits(v, flat[f"{n.rsplit('_', 1)[0]}_row_splits"])
        for n, v in flat.items()
        if not n.endswith("row_splits")
    }
    labels = rng.integers(0, 2, (rows, 1)).astype("f")
    model = models.sparse_mlp(schema, tf.data.Dataset.from_tensors((features, labels)))
    for v in model.trainable_variables:
        v.assign(tf.random.stateless_normal(v.shape, [1, 2], stddev=0.1))
    got = scorer_of(model, tmp_path / "s").predict(flat)
    np.testing.assert_allclose(got, model(features), rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["sparse", "padded", "sequential"])
def test_models_of_any_batch_form_take_csr(tmp_path, form):
    linear = layers.SparseLinear(3, N)
    if form == "sparse":
        inputs = tf.keras.Input((N,), sparse=True, name="x")
        model = tf.keras.Model(inputs, linear(layers.MaxNorm(N, bias_initializer="ones")(inputs)))
    elif form == "padded":
        inputs = [tf.keras.Input((5,), dtype="int64"), tf.keras.Input((5,))]
        model = tf.keras.Model(inputs, linear(layers.MaxNorm(N)(inputs)))
    else:
        model = tf.keras.Sequential([tf.keras.Input((5,), dtype="int64"), linear])
    ids = np.array([[0, 4, 9], [9, 30, 50]])
    values = np.array([[0.5, -1, 2], [1, 1e-9, 3]], np.float32)
    argument = {
        "sparse": tf.SparseTensor(
            [[0, 0], [0, 4], [0, 9], [1, 9], [1, 30], [1, 50]], values.ravel(), [2, N]
        ),
        "padded": [
            np.pad(ids, ((0, 0), (0, 2)), constant_values=-1),
            np.pad(values, ((0, 0), (0, 2))),
        ],
        "sequential": np.pad(ids, ((0, 0), (0, 2)), constant_values=-1),
    }[form]
    if form != "sparse":
        argument = tf.nest.map_structure(tf.constant, argument)
    got = scorer_of(model, tmp_path / "s").predict(
        ids.ravel(), None if form == "sequential" else values.ravel(), [0, 3, 6]
    )
    np.testing.assert_allclose(got, model(argument), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("tables", "error"), [("bfloat16", 8e-3), ("int8", 8e-3), ("int4", 0.1)])
@pytest.mark.parametrize("binary", [False, True])
def test_smaller_tables_predict_as_their_rows_in_float32(tmp_path, tables, error, binary):
    names = ["x_ids"] if binary else ["x_ids", "x_values"]
    inputs = [
        tf.keras.Input((None,), dtype="int64" if n == "x_ids" else "float32", ragged=True, name=n)
        for n in names
    ]
    kernel = tf.keras.initializers.RandomNormal(seed=3)
    linear = layers.SparseLinear(64, 5000, activation="tanh", kernel_initializer=kernel)
    inputs = inputs[0] if binary else inputs
    model = tf.keras.Model(inputs, linear(inputs))
    ids, values, splits = batch(50)
    values = np.clip(values, -1, 1)
    scorer = scorer_of(model, tmp_path / "s", tables=tables)
    got = scorer.predict(ids, None if binary else values, splits)
    pair = list(ragged(ids, values, splits))
    argument = pair[0] if binary else pair
    assert 0 < np.abs(got - model(argument)).max() < error
    if tables == "bfloat16":
        export.to_stock_tf(model, tmp_path / "t", tables=tables)
        want = tf.saved_model.load(str(tmp_path / "t"))(argument)
    else:
        stored = store_rows(linear.get_weights()[0], tables)
        assert stored.rows.shape == (5000, 8 + (64 if tables == "int8" else 32))
        bias = linear.get_weights()[1]
        linear.set_weights([dequantized(stored.rows, **stored.attributes), bias])
        want = model(argument)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"ids\[0\] = 5000 is out of range \[0, 5000\)"):
        scorer.predict([5000], None if binary else [1.0])


def test_unsupported_models_are_refused(tmp_path):
    ids = tf.keras.Input((5,), dtype="int64", name="x_ids")
    y = layers.SparseLinear(6, N)(ids)
    normalized = tf.keras.Model(ids, tf.keras.layers.LayerNormalization(name="n")(y))
    with pytest.raises(ValueError, match="layer 'n' is a LayerNormalization; the scorer supports"):
        export.to_scorer(normalized, tmp_path / "s")
    selu = tf.keras.Model(ids, tf.keras.layers.Dense(2, activation="selu", name="d")(y))
    with pytest.raises(
        ValueError, match="layer 'd' has the activation 'selu'; the scorer supports"
    ):
        export.to_scorer(selu, tmp_path / "s")


def test_bad_requests_get_one_clear_error(tmp_path, model):
    scorer = scorer_of(model, tmp_path / "s")
    with pytest.raises(ValueError, match="the inputs must be .*f_values.*, got"):
        scorer.predict([1])
    with pytest.raises(ValueError, match="the inputs must be"):
        scorer.predict({"f_ids": [1]})
    with pytest.raises(ValueError, match=r"ids\[0\] = 60 is out of range \[0, 60\)"):
        scorer.predict([N], [1.0])
    with pytest.raises(ValueError, match=r"row_splits\[1\] must be the number of entries 1, got 2"):
        scorer.predict([1], [1.0], [0, 2])
    text = (tmp_path / "s" / "scorer.json").read_text()
    later = re.sub(r'"crc32": \d+,', "", text).replace('"format": 1', '"format": 9')
    (tmp_path / "s" / "scorer.json").write_text(later)
    with pytest.raises(ValueError, match="has the format 9, this version reads 1 to 3"):
        core.Scorer.load(tmp_path / "s")
    with pytest.raises(FileNotFoundError):
        core.Scorer.load(tmp_path / "nowhere")


def test_threads_may_share_a_scorer(tmp_path, model):
    from concurrent.futures import ThreadPoolExecutor

    scorer = scorer_of(model, tmp_path / "s")
    batches = [batch(5, seed) for seed in range(40)]
    alone = [scorer.predict(*b) for b in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda b: scorer.predict(*b), batches))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


@pairwise(
    name=sorted({*models.names()} - {"sparse_mlp"}),
    tables=["float32", "bfloat16", "int8", "int4"],
)
def test_models_on_fields_score_as_in_keras(tmp_path, name, tables):
    schema = SCHEMAS["everything"]
    schema = dataclasses.replace(schema, labels=("label",), bag_weights={"t": "w"})
    model = field_model(name, schema)
    for v in model.trainable_variables:
        v.assign(tf.random.stateless_normal(v.shape, [1, 2], stddev=0.1))
    features = features_of(schema, 9, seed=2, name=name)
    flat = {n: x.flat_values.numpy() for n, x in features.items() if n.startswith(("bag", "sp"))}
    dense = {n: x.numpy() for n, x in features.items() if n not in flat}
    flat |= {n: x for n, x in dense.items() if n != "row_keys"}  # scorers do not take them
    for group in ("bag_t", "sparse"):
        flat[f"{group}_row_splits"] = features[f"{group}_ids"].row_splits.numpy()
    got = scorer_of(model, tmp_path / "s", tables=tables).predict(flat)
    np.testing.assert_allclose(
        got, model(features), atol={"float32": 1e-6, "int4": 0.2}.get(tables, 0.02)
    )


@pytest.mark.parametrize("pooling", [None, "mean", "sqrtn"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_bags_of_field_embeddings_score_as_in_keras(tmp_path, pooling, combiner):
    ids = tf.ragged.constant([[3, 4], [], [7]], tf.int64, ragged_rank=1)
    weights = tf.ragged.constant([[0.5, -2.0], [], [3.0]], ragged_rank=1)
    inputs = [
        tf.keras.Input([None], dtype=t.dtype, ragged=True, name=n)
        for n, t in (("a_ids", ids), ("b_ids", ids), ("b_values", weights))
    ]
    layer = layers.FieldEmbedding([5, 9], 4, pooling, combiner, num_bags=2, out_of_range="wrap")
    vectors = layer([inputs[0], [inputs[1], inputs[2]]])
    model = tf.keras.Model(inputs, tf.keras.layers.Flatten()(vectors))
    flat = {f"{n}_row_splits": ids.row_splits.numpy() for n in "ab"}
    flat |= {f"{n}_ids": ids.flat_values.numpy() for n in "ab"}
    flat["b_values"] = weights.flat_values.numpy()
    got = scorer_of(model, tmp_path / "s").predict(flat)
    np.testing.assert_allclose(got, model([ids, ids, weights]), atol=1e-6)


@pytest.mark.parametrize("kind", [layers.CountStatistics, layers.TargetStatistics])
def test_statistics_of_categories_score_as_in_keras(tmp_path, kind):
    rng = np.random.default_rng(0)
    ids, rows = rng.integers(0, 9, (60, 2)), np.arange(60)
    layer = kind(2, crosses=[(0, 1)])
    layer.adapt([((ids, rows), rng.integers(0, 2, 60))])
    inputs = tf.keras.Input([2], dtype="int64", name="ids")
    model = tf.keras.Model(inputs, layer(inputs))
    probe = rng.integers(0, 12, (20, 2))
    got = scorer_of(model, tmp_path / "s").predict({"ids": probe})
    np.testing.assert_allclose(got, model(tf.constant(probe)), rtol=1e-6)


@pytest.mark.parametrize("kind", ["platt", "platt_of_logits", "isotonic"])
def test_calibrated_models_score_as_in_keras(tmp_path, model, kind):
    if kind == "isotonic":
        pytest.importorskip("sklearn")
        layer = layers.IsotonicCalibration(nan="base_rate", name="calibration")
    else:
        layer = layers.PlattScaling(from_logits=kind != "platt", name="calibration")
    calibrated = tf.keras.Model(model.input, layer(model.output))
    with pytest.raises(ValueError, match="'calibration' is not adapted"):
        export.to_scorer(calibrated, tmp_path / "s")
    rng = np.random.default_rng(2)
    scores = rng.random(500).astype(np.float32)
    layer.adapt(scores, (rng.random(500) < scores**2).astype(np.float32))
    ids, values, splits = batch(50, 4)
    got = scorer_of(calibrated, tmp_path / "s").predict(ids, values, splits)
    np.testing.assert_allclose(got, calibrated(ragged(ids, values, splits)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("use_bias", [False, True])
def test_standardized_values_score_as_in_keras(tmp_path, use_bias):
    inputs = [
        tf.keras.Input([None], dtype="int64", ragged=True, name="f_ids"),
        tf.keras.Input([None], dtype="float32", ragged=True, name="f_values"),
    ]
    norm = layers.OnlineStandardize(N, use_bias=use_bias, bias_initializer="ones")
    model = tf.keras.Model(inputs, layers.SparseLinear(3, N)(norm(inputs)))
    norm(ragged(*batch(200, 1)), training=True)
    ids, values, splits = batch(50, 4)
    values[::7] = np.nan
    got = scorer_of(model, tmp_path / "s").predict(ids, values, splits)
    want = model(ragged(ids, values, splits))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_boundaries_by_the_labels_score_as_in_keras(tmp_path):
    inputs = [
        tf.keras.Input([None], dtype="int64", ragged=True, name="f_ids"),
        tf.keras.Input([None], dtype="float32", ragged=True, name="f_values"),
    ]
    discretizer = layers.MDLDiscretizer(pass_through_bits=8)
    ids, values, splits = batch(300, 1)
    labels = np.arange(300) % 2
    values += np.repeat(labels, np.diff(splits)).astype(np.float32)
    discretizer.adapt((ragged(ids, values, splits), labels))
    linear = layers.SparseLinear(3, discretizer.output_dim)
    model = tf.keras.Model(inputs, linear(discretizer(inputs)))
    ids, values, splits = batch(50, 4)
    got = scorer_of(model, tmp_path / "s").predict(ids, values, splits)
    np.testing.assert_allclose(got, model(ragged(ids, values, splits)), rtol=0, atol=1e-6)
