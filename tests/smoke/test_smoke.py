"""In a minute: does everything work together on this TensorFlow? For the versions between.

The whole suite runs on the oldest and the newest TensorFlow; what could break on one between is
what touches it: the op library's ABI, gradients, graph rewriting, Keras' hooks, and files.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, export, layers, metrics, ops, optimizers, selfcheck
from twml_ops._keras import KERAS_3
from twml_ops.cli import main
from twml_ops.ops import stock
from twml_ops.ops._library import library, tag_of

pytestmark = pytest.mark.one_tf  # the whole suite runs on the second TensorFlow as well

N, D, B, WIDTH, ROWS = 40, 8, 16, 6, 160
FORMS = ("sparse", "ragged", "padded")
OPTIMIZERS = ("SGD", "Momentum", "Adagrad", "RowWiseAdagrad", "LazyAdam", "Ftrl")


@pytest.fixture(autouse=True)
def _fresh_keras():
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)


def arrays():
    """Sorted distinct ids [ROWS, WIDTH] (a SparseTensor needs them so), values, labels."""
    rng = np.random.default_rng(0)
    ids = np.sort(np.argsort(rng.random((ROWS, N)), axis=1)[:, :WIDTH], axis=1)
    values = rng.uniform(0.5, 2, ids.shape).astype(np.float32)
    return ids, values, (ids < N // 4).any(axis=1, keepdims=True).astype(np.float32)


def batch_of(form, ids, values):
    if form == "padded":
        return tf.constant(ids), tf.constant(values)
    if form == "ragged":
        return tuple(tf.RaggedTensor.from_tensor(tf.constant(x)) for x in (ids, values))
    rows = np.repeat(np.arange(len(ids)), WIDTH)
    indices = np.stack([rows, ids.ravel()], axis=1)
    return tf.SparseTensor(indices, values.ravel(), [len(ids), N])


def dataset(form):
    ids, values, labels = arrays()
    cuts = range(0, ROWS, B)
    batches = [(batch_of(form, ids[i : i + B], values[i : i + B]), labels[i : i + B]) for i in cuts]
    spec = tf.nest.map_structure(tf.type_spec_from_value, batches[0])
    if form == "ragged":
        ragged = (tf.RaggedTensorSpec([None, None], t) for t in (tf.int64, tf.float32))
        spec = (tuple(ragged), tf.TensorSpec([B, 1]))
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


def inputs_of(form):
    if form == "sparse":
        return tf.keras.Input([N], sparse=True)
    options = {"ragged": True} if form == "ragged" else {}
    shape = [None] if form == "ragged" else [WIDTH]
    return [tf.keras.Input(shape, dtype=t, **options) for t in ("int64", "float32")]


def model_of(form):
    inputs = inputs_of(form)
    hidden = layers.SparseLinear(D, N, activation="relu")(layers.MaxNorm(N)(inputs))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


def test_selfcheck_finds_the_op_library(capsys):
    assert selfcheck.main(["--require-library"]) == 0
    assert tag_of(tf.__version__) in capsys.readouterr().out


def test_every_op_is_what_its_stand_in_of_stock_ops_is():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, N, 60)
    values = rng.normal(size=60).astype(np.float32)
    splits = np.arange(0, 61, 5)
    table = rng.normal(size=(N, D)).astype(np.float32)
    bounds = np.sort(rng.normal(size=(N, 3)).astype(np.float32), axis=1)
    buckets = (np.arange(N), bounds.ravel(), np.arange(0, 3 * N + 1, 3))

    def results():
        maximum, moments = tf.Variable(tf.zeros(N)), tf.Variable(tf.zeros([N, 3], tf.float64))
        weights = tf.Variable(table)
        with tf.GradientTape() as tape:
            y = ops.sparse_linear(ids, values, splits, weights)
        gradient = tape.gradient(y, weights)
        return [
            y,
            gradient.indices,
            gradient.values,
            *ops.sum_duplicates(ids, tf.gather(table, ids)),
            ops.row_splits_from_indices(np.repeat(np.arange(12), 5), 12),
            *ops.csr_from_indices(np.stack([np.repeat(np.arange(12), 5), ids], axis=1), 12),
            ops.hash_ids(ids, 20),
            ops.max_norm(ids, values, maximum, None, True),
            maximum,
            ops.online_standardize(ids, values, moments, None, False),
            *tf.nest.flatten(ops.percentile_discretize(ids, values, splits, *buckets)),
            *tf.nest.flatten(ops.hashing_discretize(ids, values, splits, *buckets, output_bits=9)),
        ]

    native = [np.asarray(tf.convert_to_tensor(r)) for r in results()]
    with library.override(stock.library):
        stand_in = [np.asarray(tf.convert_to_tensor(r)) for r in results()]
    for ours, theirs in zip(native, stand_in, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_fit_learns_in_every_batch_form_and_a_file_keeps_the_model(form, tmp_path):
    model = model_of(form)
    model.compile(
        optimizers.LazyAdam(0.03), "binary_crossentropy", metrics=[metrics.NormalizedEntropy()]
    )
    history = model.fit(dataset(form), epochs=6, verbose=0).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert history["normalized_entropy"][-1] < history["normalized_entropy"][0]
    model.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras")
    for batch, _ in dataset(form).take(2):
        np.testing.assert_allclose(again(batch), model(batch), rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_updates_are_those_of_the_slices(name):
    """`fit` in a graph takes the fused pass; eager steps apply slices."""
    trained = []
    for eagerly in (False, True):
        tf.keras.utils.set_random_seed(1)
        model = model_of("padded")
        model.compile(getattr(optimizers, name)(0.05), "mse", run_eagerly=eagerly)
        model.fit(dataset("padded").take(3), verbose=0)
        trained.append(model.get_weights())
    for graph, eager in zip(*trained, strict=True):
        np.testing.assert_allclose(graph, eager, rtol=1e-4, atol=1e-6)


def test_the_fused_pass_is_found_in_the_graph():
    model = model_of("padded")
    optimizer = optimizers.Adagrad(0.1)
    optimizer.build(model.trainable_variables)
    ids, values, labels = (x[:B] for x in arrays())

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model((ids, values)) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    names = {n.op for n in step.get_concrete_function().graph.as_graph_def().node}
    assert "Twml>SparseLinearBackwardApply" in names


def test_mixed_precision_steps_per_execution_and_jit_auto():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = model_of("padded")
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    options = {"steps_per_execution": 2}
    if KERAS_3:  # Keras 2 knows no "auto"
        options["jit_compile"] = "auto"
    model.compile(optimizers.Adagrad(0.1), "binary_crossentropy", **options)
    data = dataset("padded").repeat()  # Keras 2 wants to be told the number of steps
    losses = model.fit(data, epochs=4, steps_per_epoch=ROWS // B, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert {np.asarray(w).dtype for w in model.get_weights()} == {np.dtype("float32")}


def learned():
    """A trained model with buckets and a calibration, and the batch it is exported for."""
    ids, values, _labels = arrays()
    inputs = [
        tf.keras.Input([None], dtype=t, ragged=True, name=f"x_{part}")
        for part, t in (("ids", "int64"), ("values", "float32"))
    ]
    buckets = layers.PercentileDiscretizer(4)
    buckets.adapt((ids, values))
    hidden = layers.SparseLinear(D, buckets.output_dim, activation="relu")(buckets(inputs))
    score = tf.keras.layers.Dense(1, activation="sigmoid", name="probability")(hidden)
    model = tf.keras.Model(inputs, score)
    model.compile(optimizers.RowWiseAdagrad(0.1), "binary_crossentropy")
    model.fit(dataset("ragged"), epochs=2, verbose=0)
    return model, batch_of("ragged", ids, values)


def test_every_export_predicts_what_the_model_predicts(tmp_path):
    model, batch = learned()
    want = model(batch).numpy()
    flat = {"x_ids": batch[0].values, "x_values": batch[1].values}
    flat["x_row_splits"] = batch[0].row_splits
    for name, write in (("fast", export.to_tf), ("stock", export.to_stock_tf)):
        write(model, tmp_path / name)
        serve = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        np.testing.assert_allclose(serve(**flat)["probability"], want, atol=1e-6)
    export.to_scorer(model, tmp_path / "scorer")
    got = core.Scorer.load(tmp_path / "scorer").predict(*(np.asarray(t) for t in flat.values()))
    np.testing.assert_allclose(got, want, atol=1e-6)
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(batch), want, rtol=1e-6)


def test_many_tables_crosses_and_an_optimizer_for_each():
    tables = {n: layers.SparseTable(N, 4) for n in ("user", "ad")}
    inputs = {n: tf.keras.Input((WIDTH,), dtype="int64", name=n) for n in tables}
    found = layers.GroupedSparseLinear(tables, name="tables")(inputs)
    x = tf.keras.layers.Concatenate()(list(found.values()))
    x = tf.keras.layers.Concatenate()([layers.Cross(2)(x), layers.FactorizationMachine()(found)])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(x))
    by_table = {"user": optimizers.RowWiseAdagrad(0.1), "ad": optimizers.Adagrad(0.1)}
    composite = optimizers.CompositeOptimizer(tf.keras.optimizers.Adam(0.01), by_table)
    model.compile(composite, "binary_crossentropy")
    ids, _, labels = arrays()
    data = {"user": ids, "ad": ids[:, ::-1]}
    losses = model.fit(data, labels, batch_size=B, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_calibrations_and_ranking_metrics():
    rng = np.random.default_rng(0)
    scores = rng.random((500, 1)).astype(np.float32)
    labels = (rng.random((500, 1)) < scores**2).astype(np.float32)
    for layer in (layers.IsotonicCalibration(), layers.PlattScaling()):
        layer.adapt(scores, labels)
        ratio = metrics.CalibrationRatio()
        ratio.update_state(labels, layer(scores))
        assert float(ratio.result()) == pytest.approx(1.0, abs=0.02)
    area, exact = metrics.ROCAUC(), metrics.ExactROCAUC()
    for metric in (area, exact):
        metric.update_state(labels, scores)
    assert float(area.result()) == pytest.approx(float(exact.result()), abs=1e-3)


def test_the_command_line_trains_evaluates_and_exports(tmp_path):
    ids, values, labels = arrays()
    lines = [
        f"{int(y)} " + " ".join(f"{i + 1}:{v:.3f}" for i, v in zip(row, of_row, strict=True))
        for row, of_row, (y,) in zip(ids, values, labels, strict=True)
    ]
    (tmp_path / "data").write_text("\n".join(lines) + "\n")
    source, out = f"libsvm:{tmp_path / 'data'}", str(tmp_path / "out")

    main(["train", "--data", source, "--batch-size", "16", "--epochs", "2", "--out", out])
    main(["evaluate", out, "--data", source])
    main(["export", out, str(tmp_path / "served"), "--format", "stock"])
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["examples"] > 0
    tf.saved_model.load(str(tmp_path / "served"))
