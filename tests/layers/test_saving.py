"""Every layer survives every way to save: in every form of model, in another process."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.child_process import ChildProcess
from tests.layers.model_cases import (
    BATCHES,
    CASES,
    FORMS,
    N,
    Subclassed,
    build,
    outputs,
    public_layers,
    serializable,
)
from tests.pairwise import on_both
from twml_ops import export, layers, research
from twml_ops._keras import KERAS_3

# Their dtype does not depend on the policy.
INDEPENDENT = {"BoostedTrees", "CategoryRows", "CountStatistics", "IsotonicCalibration"}
INDEPENDENT |= {"LearnedHash", "PlattScaling", "TargetStatistics"}
WAYS = ("keras", "weights", "checkpoint", "saved_model")


@pytest.fixture(scope="module")
def child():
    with ChildProcess(["tests/layers/saved_models_child.py"]) as process:
        yield process


@pytest.fixture(scope="module", params=on_both(FORMS, "nested"))
def saved(request, tmp_path_factory):
    """The form of a model, its outputs, and a function that saves it in one of the ways."""
    form, folder = request.param, tmp_path_factory.mktemp(request.param)
    model = build(form, seed=0)

    def save(way):
        path = folder / {"keras": "m.keras", "weights": "m.weights.h5"}.get(way, way)
        if way == "keras":
            model.save(path)
        elif way == "weights":
            model.save_weights(path)
        elif way == "checkpoint":
            return tf.train.Checkpoint(model=model).save(path)
        else:
            specs = None
            if form == "subclassed":
                specs = tf.nest.map_structure(tf.type_spec_from_value, BATCHES)
            export.to_tf(model, path, inputs=specs)
        return path

    return form, outputs(model), save


def test_every_public_layer_has_a_case():
    assert public_layers() == {name.split("_")[0] for name in CASES}


@pytest.mark.parametrize("way", WAYS)
def test_every_layer_survives_every_way_to_save(saved, way, child):
    form, want, save = saved
    if (form, way) == ("subclassed", "keras") and not KERAS_3:
        pytest.skip("Keras 2 loads no subclassed model whose input is a dict of lists of tensors")
    got = child.request([form, way, str(save(way))])
    assert got.keys() == want.keys()
    # Ops of TensorFlow behind the layers may differ in the last bits in the graph of a SavedModel.
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    different = [name for name in want if not np.allclose(got[name], want[name], **tolerance)]
    assert not different


@serializable
class Normalized(tf.keras.Model):
    """A subclassed model whose layers with a state are built when Keras builds the model."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.MaxNorm(N)
        self.second = layers.OnlineStandardize(N)
        self.linear = layers.SparseLinear(2, N)

    def call(self, inputs, training=False):
        return self.linear(self.second(self.norm(inputs, training=training), training=training))


def test_a_file_has_the_weights_of_layers_that_are_built_with_the_model(tmp_path):
    ids = np.array([[1, 2], [3, 1]])
    model = Normalized()
    model(ids, training=True)
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    assert np.array_equal(loaded(ids), model(ids))
    assert np.any(loaded.norm.max_abs.numpy())


def test_a_layer_that_was_not_loaded_is_refused_in_a_sequential_model_of_floats():
    model = tf.keras.Sequential([layers.FieldEmbedding([4, 4], 2)])
    if KERAS_3:  # its input layer has no type, so Keras would make floats of the ids
        with pytest.raises(ValueError, match="ids must be integers"):
            model(np.array([[1, 2]]))
    else:
        assert model(np.array([[1, 2]])).shape == (1, 2, 2)


POLICIES = ("float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")


@pytest.mark.parametrize("policy", on_both(POLICIES, "float64", "mixed_float16"))
def test_every_layer_runs_and_has_gradients_under_every_policy(policy):
    failed = {}
    for name, case in CASES.items():
        if name.split("_")[0] in INDEPENDENT:
            continue
        tf.keras.mixed_precision.set_global_policy(policy)
        try:
            model = Subclassed(name, seed=0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.cast(model(case.batch), tf.float32) ** 2)
            found = tape.gradient(loss, model.trainable_variables)
            assert np.isfinite(loss)
            assert all(g is not None for g in found)
        except Exception as error:  # of any layer, by name
            failed[name] = repr(error)[:200]
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")
    assert not failed


def own_ones(shape, dtype=None, **_):
    return tf.ones(shape, dtype or tf.float32)


INITIALIZERS = {
    "string": "ones",
    "function": own_ones,
    "class": tf.keras.initializers.Ones,
    "object": tf.keras.initializers.Ones(),
}
INITIALIZED = {
    "Cross": ("kernel_initializer", lambda **o: layers.Cross(2, **o), "Cross"),
    "DynamicSparseLinear": (
        "kernel_initializer",
        lambda **o: layers.DynamicSparseLinear(2, 9, **o),
        "DynamicSparseLinear",
    ),
    "FieldEmbedding": (
        "embeddings_initializer",
        lambda **o: layers.FieldEmbedding([7] * 3, [2, 3, 2], out_of_range="wrap", **o),
        "FieldEmbedding",
    ),
    **{
        name: ("kernel_initializer", getattr(research, name), name)
        for name in (
            "FieldAttention",
            "FieldConvolution",
            "FieldCross",
            "FieldDot",
            "FieldLinear",
        )
    },
    "SparseLinear": (
        "kernel_initializer",
        lambda **o: layers.SparseLinear(2, N, num_partitions=2, **o),
        "SparseLinear_row",
    ),
    "MaxNorm": ("bias_initializer", lambda **o: layers.MaxNorm(N, **o), "MaxNorm_ragged_binary"),
}


@pytest.mark.parametrize("name", INITIALIZED)
def test_an_initializer_may_be_a_name_a_function_a_class_or_an_object(name):
    argument, make, case = INITIALIZED[name]
    results = []
    with tf.keras.utils.custom_object_scope({"own_ones": own_ones}):
        for kind, initializer in INITIALIZERS.items():
            tf.keras.utils.set_random_seed(0)
            layer = make(**{argument: initializer})
            layer(CASES[case].batch)
            results.append(layer)
            if kind == "function" and not KERAS_3:
                continue  # Keras 2 does not read what it makes of a function
            again = type(layer).from_config(json.loads(json.dumps(layer.get_config())))
            again(CASES[case].batch)
            results.append(again)
    for layer in results[1:]:
        for got, want in zip(layer.get_weights(), results[0].get_weights(), strict=True):
            if np.all(want == 1):
                np.testing.assert_array_equal(got, want)
    assert any(np.all(w == 1) for w in results[0].get_weights())
