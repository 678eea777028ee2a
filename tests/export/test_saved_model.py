"""SavedModels with ops of this package or stock ops: their contents and predictions."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.export.conftest import N, batch, build, ragged
from tests.pairwise import on_both
from twml_ops import core, export, layers
from twml_ops.export.model_inputs import ModelInputs

PROBE = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path[:] = [p for p in sys.path if p != os.getcwd()] + json.loads(sys.argv[3])
sys.modules["twml_ops"] = None
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
with np.load(sys.argv[2]) as tensors:
    inputs = {k: tf.constant(v) for k, v in tensors.items()}
out = model.signatures["serving_default"](**inputs)
print(json.dumps({k: v.numpy().tolist() for k, v in out.items()}))
"""


def ops_of(path):
    graph = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    return {
        node.op
        for meta in graph.meta_graphs
        for nodes in (meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function))
        for node in nodes
    }


def flat(rows=7, seed=0):
    ids, values, splits = batch(rows, seed)
    return {"f_ids": ids, "f_values": values, "f_row_splits": splits.astype(np.int64)}


def in_a_process_without_us(path, tensors, tmp_path):
    """The outputs of the signature in an interpreter that cannot import this package."""
    np.savez(tmp_path / "inputs.npz", **tensors)
    site = [p for p in sys.path if p.endswith("site-packages")]
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c", PROBE),
            *(str(path), str(tmp_path / "inputs.npz"), json.dumps(site)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {k: np.array(v) for k, v in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("partitions", on_both([(1, "row"), (3, "row"), (2, "column")], (3, "row")))
def test_stock_export_has_only_stock_ops_and_predicts_the_same(tmp_path, partitions):
    model = build(*partitions)
    export.to_stock_tf(model, tmp_path / "stock")
    assert not [op for op in ops_of(tmp_path / "stock") if op.startswith("Twml>")]
    restored = tf.saved_model.load(str(tmp_path / "stock"))
    for rows, seed in ((7, 0), (1, 3), (50, 4)):
        want = model(ragged(*batch(rows, seed)))
        got = restored(list(ragged(*batch(rows, seed))))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
        served = restored.signatures["serving_default"](
            **{k: tf.constant(v) for k, v in flat(rows, seed).items()}
        )
        np.testing.assert_allclose(served["probability"], got, rtol=1e-6)


@pytest.fixture(scope="module")
def stock(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("stock") / "stock"
    export.to_stock_tf(model, path)
    return path


def test_stock_export_serves_without_this_package(tmp_path, model, stock):
    got = in_a_process_without_us(stock, flat(), tmp_path)["probability"]
    np.testing.assert_allclose(got, model(ragged(*batch())), rtol=0, atol=1e-6)


def fast(model, path):
    """The outputs of the signature of `to_tf`, by name."""
    export.to_tf(model, path)
    assert {"Twml>ResourceSparseLinear", "Twml>MaxNorm"} <= ops_of(path)
    with tf.device("CPU:0"):  # with a GPU, TensorFlow would restore the variables there
        serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    return serve(**{k: tf.constant(v) for k, v in flat().items()})


def test_fast_export_has_the_ops_of_this_package_and_predicts_the_same(tmp_path, model):
    served = fast(model, tmp_path / "fast")["probability"]
    np.testing.assert_allclose(served, model(ragged(*batch())), rtol=1e-6)


def test_fast_export_is_bit_identical_to_the_ops(tmp_path, model):
    # Without layers of TensorFlow after them, whose bits differ from graph to graph.
    products = [
        x.output
        for x in model.layers
        if isinstance(x, layers.SparseLinear) and x.activation is tf.keras.activations.linear
    ]
    assert len(products) == 3
    normalized = next(x for x in model.layers if isinstance(x, layers.MaxNorm)).output
    products.append(layers.SparseLinear(4, N, name="another")(normalized))
    ours = tf.keras.Model(model.inputs, products)
    served = fast(ours, tmp_path / "fast")
    wanted = [w.numpy() for w in ours(ragged(*batch()))]
    assert sorted(p.numpy().tobytes() for p in served.values()) == sorted(
        w.tobytes() for w in wanted
    )


@pytest.mark.usefixtures("stock")
def test_exporting_does_not_change_the_ops_of_the_model(model):
    graph = tf.function(lambda: model(ragged(*batch()))).get_concrete_function().graph
    assert "Twml>ResourceSparseLinear" in {op.type for op in graph.get_operations()}


FORMS = {
    "sparse": lambda: tf.keras.Input((N,), sparse=True, name="x"),
    "padded": lambda: [
        tf.keras.Input((6,), dtype="int64", name="x_ids"),
        tf.keras.Input((6,), name="x_values"),
    ],
    "binary": lambda: tf.keras.Input((None,), dtype="int64", ragged=True, name="x_ids"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_batch_form_has_a_flat_signature(tmp_path, form):
    inputs = FORMS[form]()
    model = tf.keras.Model(inputs, layers.SparseLinear(3, N, name="y")(inputs))
    rng = np.random.default_rng(0)
    ids, values = rng.integers(0, N, (4, 6)), rng.normal(size=(4, 6)).astype(np.float32)
    csr = {"x_ids": ids.ravel(), "x_row_splits": np.arange(0, 25, 6)}
    features, tensors = {
        "sparse": lambda: (
            tf.SparseTensor(
                np.stack([np.repeat(np.arange(4), 6), ids.ravel()], 1), values.ravel(), [4, N]
            ),
            {**csr, "x_values": values.ravel()},
        ),
        "padded": lambda: (
            [tf.constant(ids), tf.constant(values)],
            {"x_ids": ids, "x_values": values},
        ),
        "binary": lambda: (tf.RaggedTensor.from_tensor(ids), csr),
    }[form]()
    export.to_stock_tf(model, tmp_path / "m")
    restored = tf.saved_model.load(str(tmp_path / "m"))
    tensors = {k: tf.constant(v) for k, v in tensors.items()}
    served = restored.signatures["serving_default"](**tensors)
    (got,) = served.values()
    np.testing.assert_allclose(got, model(features), atol=1e-6)


def test_sequential_and_subclassed_models(tmp_path):
    ids = tf.constant([[1, 5], [7, -1]], tf.int64)
    sequential = tf.keras.Sequential(
        [tf.keras.Input((2,), dtype="int64", name="ids"), layers.SparseLinear(3, N)]
    )

    class Subclassed(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.linear = layers.SparseLinear(3, N)

        def call(self, features):
            return {"score": self.linear(features["ids"])}

    subclassed = Subclassed()
    subclassed({"ids": ids})
    with pytest.raises(ValueError, match="has no symbolic inputs: pass their specs"):
        export.to_stock_tf(subclassed, tmp_path / "no")
    for name, model, argument, specs in (
        ("a", sequential, ids, None),
        ("b", subclassed, {"ids": ids}, {"ids": tf.TensorSpec([None, 2], tf.int64)}),
    ):
        export.to_stock_tf(model, tmp_path / name, inputs=specs)
        restored = tf.saved_model.load(str(tmp_path / name))
        assert not [op for op in ops_of(tmp_path / name) if op.startswith("Twml>")]
        served = restored.signatures["serving_default"](ids=ids)
        want = tf.nest.flatten(model(argument))[0]
        np.testing.assert_allclose(tf.nest.flatten(served)[0], want, atol=1e-6)


@pytest.mark.parametrize("write", [export.to_tf, export.to_stock_tf])
def test_the_model_and_each_signature_are_traced_once(tmp_path, model, monkeypatch, write):
    """A trace of the signature for raw columns is slow: it has many ops for each column."""
    traced, assemble, call = [], ModelInputs.assemble, type(model).__call__

    def counted_inputs(*args):
        traced.append("inputs")
        return assemble(*args)

    def counted_call(self, *args, **options):
        traced.extend(["model"] * (self is model))
        return call(self, *args, **options)

    monkeypatch.setattr(ModelInputs, "assemble", counted_inputs)
    monkeypatch.setattr(type(model), "__call__", counted_call)
    write(model, tmp_path / "served")
    assert traced == ["inputs", "model"]
    assert list(tf.saved_model.load(str(tmp_path / "served")).signatures) == ["serving_default"]


def traced_model(concrete):
    """A model with a function of its own that was traced with our ops."""

    class Traced(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.linear = layers.SparseLinear(3, N)
            self.linear.build()
            self.function = tf.function(self.linear.call)

        def call(self, ids):
            return self.function(ids)

    model = Traced()
    ids = tf.constant([[1]], tf.int64)
    model(ids)
    if concrete:
        model.function = model.function.get_concrete_function(tf.TensorSpec([1, 1], tf.int64))
    return model, ids


def test_a_concrete_function_traced_before_cannot_be_exported(tmp_path):
    model, _ = traced_model(concrete=True)
    with pytest.raises(ValueError, match="contains Twml>ResourceSparseLinear"):
        export.to_stock_tf(model, tmp_path / "m", inputs=tf.TensorSpec([1, 1], tf.int64))
    assert not Path(tmp_path / "m").exists()


def test_a_function_traced_before_is_exported_with_stock_ops(tmp_path):
    model, ids = traced_model(concrete=False)
    export.to_stock_tf(model, tmp_path / "m", inputs=tf.TensorSpec([1, 1], tf.int64))
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    np.testing.assert_array_equal(loaded(ids), model(ids))
    assert b"Twml>" not in (tmp_path / "m" / "saved_model.pb").read_bytes()


@pytest.mark.parametrize(
    ("tables", "error", "share"), [("bfloat16", 8e-3, 0.51), ("int8", 8e-3, 0.28)]
)
def test_smaller_tables_predict_nearly_the_same(tmp_path, tables, error, share):
    inputs = tf.keras.Input((None,), dtype="int64", ragged=True, name="x_ids")
    kernel = tf.keras.initializers.RandomNormal(seed=3)
    linear = layers.SparseLinear(64, 5000, activation="tanh", kernel_initializer=kernel)
    model = tf.keras.Model(inputs, linear(inputs))
    ids = ragged(*batch(50))[0]
    sizes = {}
    for form in ("float32", tables):
        path = tmp_path / form
        export.to_stock_tf(model, path, tables=form)
        sizes[form] = sum(f.stat().st_size for f in (path / "variables").iterdir())
    got = tf.saved_model.load(str(path))(ids)
    assert 0 < np.abs(got - model(ids)).max() < error
    assert sizes[tables] < share * sizes["float32"]
    assert not [op for op in ops_of(path) if op.startswith("Twml>")]


def test_an_unknown_table_format_is_refused(tmp_path, model):
    with pytest.raises(ValueError, match="'float32', 'bfloat16' or 'int8', got 'int4'"):
        export.to_stock_tf(model, tmp_path / "m", tables="int4")


def two_bags(first, second, dtype="int64", together=False):
    """A model of two ragged inputs, which are independent or one batch (ids, values)."""
    tf.keras.utils.set_random_seed(0)
    dtypes = ("int64", dtype)
    inputs = [
        tf.keras.Input([None], dtype=t, ragged=True, name=n)
        for t, n in zip(dtypes, (first, second), strict=True)
    ]
    if together:
        return tf.keras.Model(inputs, layers.SparseLinear(2, N)(layers.MaxNorm(N)(inputs)))
    parts = [layers.SparseLinear(2, N)(x) for x in inputs]
    return tf.keras.Model(inputs, tf.keras.layers.Concatenate()(parts))


EXPORTS = (export.to_tf, export.to_stock_tf, export.to_scorer)


@pytest.mark.parametrize("write", EXPORTS)
@pytest.mark.parametrize("names", [("item", "item_ids"), ("item_ids", "item_values")])
def test_independent_inputs_never_share_row_splits(write, names, tmp_path):
    with pytest.raises(ValueError, match="'item_row_splits' in the export: rename one of them"):
        write(two_bags(*names), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_every_export_has_row_splits_for_each_independent_input(tmp_path):
    model = two_bags("item", "user_ids")
    bags = [tf.ragged.constant(b, dtype=tf.int64) for b in ([[1, 2], []], [[3], [4, 5, 6]])]
    want = model(bags).numpy()
    flat = {"item": bags[0].flat_values.numpy(), "user_ids": bags[1].flat_values.numpy()}
    flat |= {"item_row_splits": bags[0].row_splits.numpy()}
    flat |= {"user_row_splits": bags[1].row_splits.numpy()}
    for write in EXPORTS:
        write(model, tmp_path / write.__name__)
        if write is export.to_scorer:
            got = core.Scorer.load(tmp_path / write.__name__).predict(flat)
        else:
            with tf.device("CPU:0"):
                loaded = tf.saved_model.load(str(tmp_path / write.__name__))
            tensors = {name: tf.constant(x) for name, x in flat.items()}
            (got,) = loaded.signatures["serving_default"](**tensors).values()
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_the_parts_of_one_batch_share_row_splits_if_their_names_say_so(tmp_path):
    for names, splits in (
        (("g_ids", "g_values"), {"g_row_splits"}),
        (("ids", "weights"), {"ids_row_splits", "weights_row_splits"}),
    ):
        model = two_bags(*names, dtype="float32", together=True)
        for outer in (model, nested(model)):
            assert set(ModelInputs(outer).flat_specs()) == {*names} | splits


def nested(model):
    inputs = [
        tf.keras.Input([None], dtype=x.dtype, ragged=True, name=x.name.split(":")[0])
        for x in model.inputs
    ]
    return tf.keras.Model(inputs, model(inputs))


def test_a_scorer_has_the_weights_of_a_bag_whatever_their_names(tmp_path):
    tf.keras.utils.set_random_seed(0)
    inputs = [
        tf.keras.Input([None], dtype=t, ragged=True, name=n)
        for t, n in (("int64", "tags"), ("float32", "strengths"))
    ]
    for combiner in ("sum", "mean", "sqrtn"):
        table = layers.FieldEmbedding([9], 2, num_bags=1, bag_combiner=combiner)
        model = tf.keras.Model(inputs, table([inputs]))
        ids = tf.ragged.constant([[1, 2], [3], []], dtype=tf.int64)
        weights = tf.ragged.constant([[1.0, -3.0], [0.0], []])  # of no weight, and empty
        want = model([ids, weights]).numpy()
        assert not want[1:].any()
        export.to_scorer(model, tmp_path / combiner)
        got = core.Scorer.load(tmp_path / combiner).predict(
            {
                "tags": ids.flat_values.numpy(),
                "strengths": weights.flat_values.numpy(),
                "tags_row_splits": ids.row_splits.numpy(),
            }
        )
        np.testing.assert_allclose(got, want.reshape(got.shape), atol=1e-6)
