"""tf.estimator (TensorFlow 2.15): graph mode trains as Keras does, and the whole pipeline runs."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from twml_ops import layers, metrics, ops, optimizers

ROOT = Path(__file__).resolve().parents[2]

if not hasattr(tf, "estimator"):
    pytest.skip("TensorFlow has no tf.estimator", allow_module_level=True)

estimator = importlib.import_module("twml_ops.estimator")
v1 = tf.compat.v1
N, D, B = 12, 4, 8
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1, clipnorm=1.0),
    "momentum": lambda: optimizers.Momentum(0.1, nesterov=True, weight_decay=0.01),
    "adagrad": lambda: optimizers.Adagrad(
        tf.keras.optimizers.schedules.PolynomialDecay(0.1, 4, 0.01)
    ),
    "rowwise_adagrad": lambda: optimizers.RowWiseAdagrad(0.1),
    "lazy_adam": lambda: optimizers.LazyAdam(0.1, global_clipnorm=0.5),
    "ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
}


def batches(count=5):
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        lengths = rng.integers(0, 5, B)
        ids = rng.integers(0, N, lengths.sum())
        values = rng.normal(size=len(ids)).astype(np.float32)
        labels = rng.integers(0, 2, (B, 1)).astype(np.float32)
        made.append((ids, values, np.concatenate([[0], np.cumsum(lengths)]), labels))
    return made


def net():
    """Layers with fixed starts, and a function of a batch."""
    rng = np.random.default_rng(3)
    constant = tf.keras.initializers.Constant
    table = constant(rng.normal(size=(N, D)).astype(np.float32))
    norm = layers.MaxNorm(N)
    linear = layers.SparseLinear(D, N, activation="tanh", kernel_initializer=table)
    out = tf.keras.layers.Dense(
        1, activation="sigmoid", kernel_initializer=constant(rng.normal(size=(D, 1)))
    )

    def call(ids, values, splits):
        ragged = tuple(tf.RaggedTensor.from_row_splits(x, splits) for x in (ids, values))
        return out(linear(norm(ragged, training=True)))

    return call, (norm, linear, out)


def loss_of(call, batch):
    ids, values, splits, labels = batch
    return tf.reduce_mean((call(ids, values, splits) - labels) ** 2)


def train_eagerly(optimizer):
    call, made = net()
    for batch in batches():
        with tf.GradientTape() as tape:
            loss = loss_of(call, batch)
        variables = [v for layer in made for v in layer.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return [v.numpy() for layer in made for v in layer.variables]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_graph_of_version_1_trains_to_the_weights_of_keras(name):
    want = train_eagerly(OPTIMIZERS[name]())
    with tf.Graph().as_default() as graph, v1.Session() as session:
        call, made = net()
        placeholders = [
            v1.placeholder(t, s)
            for t, s in zip(
                (tf.int64, tf.float32, tf.int64, tf.float32),
                ([None], [None], [None], [B, 1]),
                strict=True,
            )
        ]
        train = estimator.as_v1(OPTIMIZERS[name]()).minimize(loss_of(call, placeholders))
        session.run(v1.global_variables_initializer())
        for batch in batches():
            session.run(train, dict(zip(placeholders, batch, strict=True)))
        got = session.run([v for layer in made for v in layer.variables])
        fused = {op.type for op in graph.get_operations()}
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    clips = name in ("sgd", "lazy_adam")  # clipping looks at the gradient
    assert ("Twml>SparseLinearBackwardApply" in fused) == (not clips)


RULES = {
    "sgd": optimizers.SGD,
    "momentum": optimizers.Momentum,
    "adagrad": optimizers.Adagrad,
    "rowwise_adagrad": optimizers.RowWiseAdagrad,
    "lazy_adam": optimizers.LazyAdam,
    "ftrl": optimizers.Ftrl,
}


def sparse_loss(table):
    splits = tf.constant([0, 2, 3, 5], tf.int64)
    return tf.reduce_sum(tf.sin(ops.sparse_linear([1, 4, 1, 2, 4], None, splits, table)))


def dense_loss(table):
    return tf.reduce_sum(tf.sin(tf.cast(table, tf.float32)))


def start_of_a_bfloat16_table():
    weights = np.random.default_rng(4).normal(size=(N, D)).astype(np.float32)
    return tf.cast(weights, tf.bfloat16)


@pytest.mark.parametrize("loss", [sparse_loss, dense_loss], ids=["sparse", "dense"])
@pytest.mark.parametrize("name", RULES)
def test_a_bfloat16_table_is_rounded_as_keras_rounds_it(name, loss):
    def make():
        return RULES[name](1e-3, rounding_seed=7, weight_decay=0.01)

    want = tf.Variable(start_of_a_bfloat16_table())
    optimizer = make()
    for _ in range(4):
        with tf.GradientTape() as tape:
            value = loss(want)
        optimizer.apply_gradients([(tape.gradient(value, want), want)])
    with tf.Graph().as_default(), v1.Session() as session:
        table = tf.Variable(start_of_a_bfloat16_table())
        trained = estimator.as_v1(make())
        step = trained.minimize(loss(table))
        session.run(v1.global_variables_initializer())
        for _ in range(4):
            session.run(step)
        got = session.run(table)
        slots = [trained.get_slot(table, s) for s in trained.get_slot_names()]
        assert [s.dtype for s in slots] == [tf.float32] * len(make().update_rule.slot_names)
    np.testing.assert_array_equal(got.astype(np.float32), tf.cast(want, tf.float32))


def test_small_steps_move_a_bfloat16_table_in_the_mean():
    rate, steps, width = 2.0**-12, 64, 4096  # a step is a 16th of the spacing below 1
    with tf.Graph().as_default(), v1.Session() as session:
        table = tf.Variable(tf.ones([1, width], tf.bfloat16))
        loss = tf.reduce_sum(ops.sparse_linear([0], None, [0, 1], table))
        step = estimator.as_v1(optimizers.SGD(rate)).minimize(loss)
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(step)
        weights = session.run(table).astype(np.float32)
    assert abs(weights.mean() - (1 - steps * rate)) < 2e-3
    assert (weights != 1).mean() > 0.9


@pytest.mark.parametrize(("concurrency", "want"), [("locked", False), ("hogwild", True)])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by slices"])
def test_the_concurrency_reaches_the_op(concurrency, want, fused):
    with tf.Graph().as_default() as graph:
        table = tf.Variable(tf.zeros([N, D]))
        loss = tf.reduce_sum(ops.sparse_linear([1, 2], None, [0, 2], table))
        clip = {} if fused else {"clipvalue": 1.0}
        optimizer = optimizers.Adagrad(0.1, concurrency=concurrency, **clip)
        estimator.as_v1(optimizer).minimize(loss)
        name = "Twml>SparseLinearBackwardApply" if fused else "Twml>ApplyRows"
        updates = [op.get_attr("hogwild") for op in graph.get_operations() if op.type == name]
    assert updates == [want]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_of_any_rank_train_to_the_weights_of_keras(name):
    start = np.random.default_rng(4).normal(size=(N, 2, 3)).astype(np.float32)

    def loss(w):
        return tf.reduce_sum(tf.gather(w, [1, 4, 1]) ** 2)

    w, optimizer = tf.Variable(start), OPTIMIZERS[name]()
    for _ in range(2):
        with tf.GradientTape() as tape:
            value = loss(w)
        optimizer.apply_gradients([(tape.gradient(value, w), w)])
    with tf.Graph().as_default(), v1.Session() as session:
        again = v1.get_variable("w", initializer=start, use_resource=True)
        train = estimator.as_v1(OPTIMIZERS[name]()).minimize(loss(again))
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run(train)
        got = session.run(again)
    np.testing.assert_allclose(got, w, rtol=1e-5, atol=1e-6)


def test_no_variable_of_an_optimizer_starts_from_another():
    with tf.Graph().as_default():
        optimizer = OPTIMIZERS["adagrad"]()  # with a schedule of its learning rate
        variable = v1.get_variable("w", [2], use_resource=True)
        estimator.as_v1(optimizer).minimize(tf.reduce_sum(variable))
        for v in v1.global_variables():
            sources = [v.initial_value.op]
            while sources:
                op = sources.pop()
                assert op.type != "ReadVariableOp", v.name
                sources += [t.op for t in op.inputs]


@pytest.mark.parametrize(
    "make", [tf.keras.optimizers.Adam, tf.keras.optimizers.legacy.Adam, lambda: "adam"]
)
def test_an_optimizer_that_would_not_train_is_refused(make):
    with pytest.raises(TypeError, match=r"optimizer must be one of twml_ops.optimizers or of tf"):
        estimator.as_v1(make())


def test_an_optimizer_of_tensorflow_is_returned_unchanged():
    adam = v1.train.AdamOptimizer()
    assert estimator.as_v1(adam) is adam


def test_keras_metrics_accumulate_over_batches():
    labels, predictions = np.float32([[0], [1], [1], [0]]), np.float32([[0.2], [0.9], [0.4], [0.5]])
    weights = np.float32([1, 2, 3, 4])
    made = lambda: [metrics.NormalizedEntropy(), metrics.CalibrationRatio(), tf.keras.metrics.AUC()]  # noqa: E731
    want = []
    for metric in made():
        metric.update_state(labels, predictions, weights)
        want.append(metric.result().numpy())
    with tf.Graph().as_default(), v1.Session() as session:
        feed = [v1.placeholder(tf.float32, s) for s in ([None, 1], [None, 1], [None])]
        measured = list(estimator.metric_ops(made(), *feed).values())
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for half in (slice(0, 1), slice(1, 4)):
            data = (labels[half], predictions[half], weights[half])
            session.run([update for _, update in measured], dict(zip(feed, data, strict=True)))
        got = session.run([value for value, _ in measured])
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_discretizer_factory_makes_the_adapted_layer_in_a_graph():
    data = tuple(
        tf.ragged.constant(x, t)
        for x, t in (([[3, 3, 3], [5]], tf.int64), ([[1.0, 2, 3], [0]], tf.float32))
    )
    layer = layers.PercentileDiscretizer(2, unknown="drop", name="buckets")
    with pytest.raises(ValueError, match="'buckets' is not adapted"):
        estimator.discretizer_factory(layer)
    layer.adapt(data)
    make = estimator.discretizer_factory(layer)
    want = layer(data)[0].flat_values.numpy()
    with tf.Graph().as_default(), v1.Session() as session:
        made = make()
        assert made.output_dim == layer.output_dim
        ids, values = (tf.ragged.constant(x.to_list(), dtype=x.dtype) for x in data)
        out = made((ids, values))[0].flat_values
        names = [v.op.name for v in v1.global_variables()]
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(out), want)
    assert names == ["buckets/feature_ids", "buckets/boundaries", "buckets/splits"]


def save(folder, **values):
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in values.items():
            tf.Variable(value, name=name.replace("__", "/"))
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, str(folder / "model"))


@pytest.mark.parametrize(
    ("scopes", "want"),
    [
        (None, {"a/w": 1.0, "b": 0.0}),
        ({"old": "a"}, {"a/w": 3.0, "b": 0.0}),
        ({"old/w": "b"}, {"a/w": 0.0, "b": 3.0}),
        ({"a": ""}, {"a/w": 0.0, "b": 0.0, "w": 1.0}),
    ],
)
def test_warm_start_maps_scopes(tmp_path, scopes, want):
    save(tmp_path, a__w=1.0, old__w=3.0)
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {name: tf.Variable(0.0, name=name) for name in want}
        started = estimator.warm_start(str(tmp_path), scopes)
        session.run(v1.global_variables_initializer())
        assert session.run(variables) == want
    assert set(started) == {name for name, value in want.items() if value}


def test_warm_start_refuses_bad_arguments(tmp_path):
    prefix = save(tmp_path, w=[1.0, 2.0])
    with tf.Graph().as_default():
        tf.Variable([0.0], name="w")
        with pytest.raises(ValueError, match="does not exist"):
            estimator.warm_start(str(tmp_path / "none"))
        with pytest.raises(ValueError, match=r"scopes\['x'\] = 'w' matches no variable"):
            estimator.warm_start(prefix, {"x": "w"})
        with pytest.raises(ValueError, match=r"w has the shape \(1,\), w in the checkpoint \[2\]"):
            estimator.warm_start(prefix)


SCORE = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import twml_ops.ops
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(json.dumps(serve(tf.constant([bytes.fromhex(sys.argv[2])]))["probability"].numpy().tolist()))
"""


def write_libsvm(path, rows, seed):
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for _ in range(rows):
            ids = np.sort(rng.choice(8, 4, replace=False))
            label = 1 if (ids < 4).sum() + rng.normal(0, 0.5) > 2 else -1
            row = " ".join(f"{i + 1}:{rng.random() + 0.5:.3f}" for i in ids)
            file.write(f"{label:+d} {row}\n")
    return f"libsvm:{path}"


def test_the_example_trains_stops_warm_starts_exports_and_scores(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    example = importlib.import_module("examples.estimator")
    data, held_out = (write_libsvm(tmp_path / f"{i}.svm", n, i) for i, n in ((0, 600), (1, 200)))
    result = example.run(data + "?dim=9", held_out, tmp_path, max_steps=2000, patience=100)
    assert result["metrics"]["auc"] > 0.8
    assert result["metrics"]["normalized_entropy"] < 0.8
    first, second = result["estimators"]
    assert first.get_variable_value("global_step") < 2000  # it stopped early
    table, again = (e.get_variable_value("linear/kernel") for e in (first, second))
    assert np.abs(table - again).max() < 0.01  # one step of LazyAdam(0.005) from the first's end
    # The export scores a tf.Example in a new process as the estimator predicts it.
    row = {"sparse_ids": [[1, 2, 6]], "sparse_values": [[1.0, 0.7, 1.2]]}
    predicted = next(
        first.predict(
            lambda: tf.data.Dataset.from_tensors(
                {
                    k: tf.ragged.constant(v) if "v" in k else tf.ragged.constant(v, tf.int64)
                    for k, v in row.items()
                }
            )
        )
    )
    serialized = example.example_of(row["sparse_ids"][0], row["sparse_values"][0])
    done = forked.run(
        ["-c", SCORE, result["exports"]["example"], serialized.hex()],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    ((scored,),) = json.loads(done.stdout.splitlines()[-1])
    assert scored == pytest.approx(float(predicted["probability"][0]), abs=1e-6)
    # And the raw features' signature agrees.
    serve = tf.saved_model.load(result["exports"]["raw"]).signatures["serving_default"]
    raw = serve(
        sparse_ids=tf.constant(row["sparse_ids"][0], tf.int64),
        sparse_values=tf.constant(row["sparse_values"][0]),
        sparse_row_splits=tf.constant([0, 3], tf.int64),
    )
    assert raw["probability"].numpy()[0, 0] == pytest.approx(scored, abs=1e-6)


def test_example_weights_and_a_wrong_optimizer_in_a_model_fn(tmp_path):
    def builder():
        linear = layers.SparseLinear(1, N, activation="sigmoid", kernel_initializer="zeros")
        return lambda features, training: linear(features["x_ids"])

    def input_fn():
        features = {"x_ids": np.array([[1], [2]]), "weight": np.float32([1, 0])}
        return tf.data.Dataset.from_tensors((features, np.float32([[1], [1]]))).repeat()

    model_fn = estimator.make_model_fn(
        builder, lambda: v1.train.GradientDescentOptimizer(0.5), weight_feature="weight"
    )
    trained = tf.estimator.Estimator(model_fn, str(tmp_path / "m")).train(input_fn, steps=3)
    kernel = trained.get_variable_value("sparse_linear/kernel")
    assert kernel[1] > 0  # the example of weight 0 taught nothing
    assert kernel[2] == 0
    wrong = estimator.make_model_fn(builder, tf.keras.optimizers.Adam(), weight_feature="weight")
    with pytest.raises(TypeError, match="which does not train"):
        tf.estimator.Estimator(wrong, str(tmp_path / "n")).train(input_fn, steps=1)


@pytest.mark.parametrize("labels", [[-1], [-1, 1]], ids=["B", "B1"])
@pytest.mark.parametrize("predictions", [[-1], [-1, 1]], ids=["b", "b1"])
def test_the_loss_is_that_of_each_example_whatever_the_ranks(labels, predictions):
    rng = np.random.default_rng(4)
    p, y = (rng.random(64).astype(np.float32) for _ in range(2))
    model_fn = estimator.make_model_fn(
        lambda: lambda features, training: tf.reshape(features["p"], predictions),
        optimizers.SGD(0.1),
        loss=lambda a, b: tf.reshape(tf.square(a - b), [-1]),
        weight_feature="w",
    )
    with tf.Graph().as_default(), v1.Session() as session:
        features = {"p": tf.constant(p), "w": tf.constant(y)}
        spec = model_fn(features, tf.reshape(tf.constant(y), labels), "eval")
        loss = session.run(spec.loss)
    assert loss == pytest.approx(np.mean(y * (y - p) ** 2), rel=1e-5)


def test_a_loss_of_a_function_may_take_labels_of_any_structure():
    """Such as sparse labels, or the labels of several tasks."""
    model_fn = estimator.make_model_fn(
        lambda: lambda features, training: features["p"],
        optimizers.SGD(0.1),
        loss=lambda y, p: tf.square(tf.sparse.to_dense(y["click"])[:, 0] - p[:, 0]),
    )
    with tf.Graph().as_default(), v1.Session() as session:
        labels = {"click": tf.sparse.from_dense([[1.0], [0.0]])}
        spec = model_fn({"p": tf.constant([[0.5], [0.25]])}, labels, "eval")
        assert session.run(spec.loss) == pytest.approx((0.25 + 0.0625) / 2)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_missing_weight_feature_is_an_error(mode):
    model_fn = estimator.make_model_fn(
        lambda: lambda features, training: features["p"], optimizers.SGD(0.1), weight_feature="w"
    )
    with tf.Graph().as_default():
        features = {"p": tf.ones([2, 1])}
        with pytest.raises(ValueError, match=r"one of the features \['p'\], got 'w'"):
            model_fn(features, tf.ones([2, 1]), mode)
        assert model_fn(features, None, "infer").mode == "infer"


def test_a_model_fn_written_by_hand_trains_evaluates_and_predicts(tmp_path):
    rng = np.random.default_rng(5)
    ids = rng.integers(0, N, (320, 3))
    values = rng.normal(size=ids.shape).astype(np.float32)
    labels = (values[:, :1] > 0).astype(np.float32)
    buckets = layers.PercentileDiscretizer(4, name="buckets")
    buckets.adapt((ids, values))
    make = estimator.discretizer_factory(buckets)

    def model_fn(features, labels, mode):
        linear = layers.SparseLinear(1, buckets.output_dim, name="linear")
        logits = linear(make()((features["ids"], features["values"])))
        named = {"probability": tf.sigmoid(logits)}
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions=named)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        measured = [metrics.NormalizedEntropy(), metrics.ROCAUC()]
        return tf.estimator.EstimatorSpec(
            mode,
            predictions=named,
            loss=loss,
            train_op=estimator.as_v1(optimizers.LazyAdam(0.05)).minimize(
                loss, v1.train.get_or_create_global_step()
            ),
            eval_metric_ops=estimator.metric_ops(measured, labels, named["probability"]),
        )

    def input_fn():
        data = ({"ids": ids, "values": values}, labels)
        return tf.data.Dataset.from_tensor_slices(data).batch(32)

    made = tf.estimator.Estimator(model_fn, str(tmp_path))
    made.train(lambda: input_fn().repeat(), steps=60)
    result = made.evaluate(input_fn)
    assert result["global_step"] == 60
    assert result["normalized_entropy"] < 0.95
    assert result["roc_auc"] > 0.6
    assert len(list(made.predict(input_fn))) == len(ids)
