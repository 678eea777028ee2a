"""Files written by earlier versions load, and predict what they predicted when they were written.

The numbers of calculations are the recorded ones, too: see tests/fixtures/calculations.py.

tests/fixtures has them, written by version 0.1.0 under TensorFlow 2.15 (Keras 2) and 2.21 (Keras
3); tests/fixtures/write.py shows how. Both TensorFlows read both sets, as far as Keras allows:

- `.keras`: the same Keras reads the whole model, its optimizer's state and its metrics. The other
  one reads the weights only, into a model built anew: the config names modules of Keras that it
  does not have. Keras 2 does not read bfloat16 tables of Keras 3, which writes them as plain bytes.
- SavedModels, scorers and the checkpoints of a cluster: every TensorFlow reads them.
- `tf.train.Checkpoint`, checkpoints and runs of this package: the same Keras only; the two track a
  model's parts under different names.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint import training
from tests.fixtures import cases
from tests.fixtures.calculations import CALCULATIONS
from tests.trained_runs import write_criteo
from twml_ops import _research, core, layers, metrics, models, optimizers
from twml_ops._keras import KERAS_3
from twml_ops.checkpoint import CheckpointManager, restore, variables_of
from twml_ops.cli import main
from twml_ops.distribute import iter_checkpoints

FIXTURES = Path(__file__).parent / "fixtures"
TAGS = ("tf2.15", "tf2.21")
OURS, OTHER = TAGS[KERAS_3], TAGS[not KERAS_3]
EXPECTED = {tag: json.loads((FIXTURES / tag / "expected.json").read_text()) for tag in TAGS}
TOLERANCE = 1e-5  # of other instructions and of stock ops, which add in another order
LIKE_ADAM = 1e-4  # of optimizers that divide small numbers by small numbers

REGISTERED = {
    "Adagrad",
    "Bias",
    "BoostedTrees",
    "CalibrationRatio",
    "CategoryRows",
    "CompositeOptimizer",
    "CountStatistics",
    "Cross",
    "DHENBlock",
    "DotInteraction",
    "DynamicLookup",
    "DynamicSparseLinear",
    "ExactPRAUC",
    "ExactROCAUC",
    "FactorizationMachine",
    "FieldAttention",
    "FieldConvolution",
    "FieldCross",
    "FieldDot",
    "FieldEmbedding",
    "FieldLinear",
    "FieldLogarithms",
    "FieldQuantiles",
    "Ftrl",
    "GroupedSparseLinear",
    "HashedIds",
    "HashingDiscretizer",
    "IsotonicCalibration",
    "LazyAdam",
    "LearnedHash",
    "LinearScalingWarmup",
    "MDLDiscretizer",
    "MaxNorm",
    "MeanLogit",
    "Momentum",
    "NormalizedEntropy",
    "OnlineStandardize",
    "PRAUC",
    "PercentileDiscretizer",
    "PlattScaling",
    "ROCAUC",
    "RelativeCrossEntropy",
    "RowWiseAdagrad",
    "SGD",
    "Segmented",
    "Shampoo",
    "SigmoidOfMeanLogit",
    "SparseLinear",
    "SplitLabels",
    "StringHash",
    "TargetStatistics",
    "Tower",
    "TowerModule",
    "Windowed",
} | ({"LossScaleOptimizer"} if KERAS_3 else set())  # in Keras 2 it is Keras' own


def test_the_names_that_files_have_for_classes_are_these():
    assert all((layers, metrics, models, optimizers))  # importing them registers the classes
    found = {
        name.partition(">")[2]
        for name, known in tf.keras.utils.get_custom_objects().items()
        if name.startswith("Twml>") and known.__module__ != "twml_ops._keras_classes"
    }
    assert found == REGISTERED


def load(tag, name):
    return tf.keras.models.load_model(str(FIXTURES / tag / f"{name}.keras"))


def unzipped(tag, name, folder):
    with zipfile.ZipFile(FIXTURES / tag / f"{name}.zip") as z:
        z.extractall(folder)
    return str(folder)


def same(got, want, tolerance=TOLERANCE):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", cases.LAYERS)
def test_a_model_predicts_what_it_did_when_it_was_saved(name):
    same(cases.predictions(load(OURS, name), cases.LAYERS[name][0]), EXPECTED[OURS][name])


@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_training_goes_on_where_the_file_left_it(name):
    same(cases.weights_after_a_step(load(OURS, name)), EXPECTED[OURS][name], LIKE_ADAM)


@pytest.mark.parametrize("name", ["dhen_blocks", "shampoo"])
def test_files_of_research_need_no_import_of_it(name, monkeypatch):
    registered = tf.keras.utils.get_custom_objects()
    kept = {n: registered[f"Twml>{n}"] for n in _research.KERAS_CLASSES}
    for each in kept:
        monkeypatch.delitem(registered, f"Twml>{each}")
    _research.register_keras_classes()
    assert not any(registered[f"Twml>{n}"] is cls for n, cls in kept.items())
    model = load(OURS, name)
    for each, cls in kept.items():
        monkeypatch.setitem(registered, f"Twml>{each}", cls)
    if name == "shampoo":
        same(cases.weights_after_a_step(model), EXPECTED[OURS][name], LIKE_ADAM)
    else:
        same(cases.predictions(model, cases.DENSE), EXPECTED[OURS][name])


def test_compiled_metrics_come_back():
    got = cases.measures(load(OURS, "metrics"))
    assert got == pytest.approx(EXPECTED[OURS]["metrics"], rel=LIKE_ADAM)


@pytest.mark.parametrize("name", cases.LAYERS)
def test_the_other_keras_weights_go_into_a_model_built_anew(name):
    if not KERAS_3 and name in ("sparse_linear_bfloat16", "grouped_sparse_linear"):
        pytest.skip("Keras 2 does not read the bfloat16 tables of Keras 3")
    batch, build = cases.LAYERS[name]
    model = build()
    model.load_weights(str(FIXTURES / OTHER / f"{name}.keras"))
    same(cases.predictions(model, batch), EXPECTED[OTHER][name])


def test_the_other_keras_whole_model_is_refused_by_keras_itself():
    with pytest.raises(TypeError, match=r"keras\.src.* cannot be imported"):
        load(OTHER, "sparse_linear")


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("name", ["saved_model", "stock_saved_model"])
def test_saved_models_serve_under_every_tensorflow(tag, name, tmp_path):
    served = tf.saved_model.load(unzipped(tag, name, tmp_path)).signatures["serving_default"]
    found = served(i=tf.constant(cases.IDS), v=tf.constant(cases.VALUES))
    same(found["probability"].numpy(), EXPECTED[tag]["exports"])


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize(("name", "tolerance"), [("scorer", TOLERANCE), ("scorer_int8", 0.01)])
def test_scorers_predict_what_their_model_did(tag, name, tolerance, tmp_path):
    there = cases.IDS >= 0
    splits = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    scorer = core.Scorer.load(unzipped(tag, name, tmp_path))
    found = scorer.predict(cases.IDS[there], cases.VALUES[there], splits)
    same(found, EXPECTED[tag]["exports"], tolerance)


def test_a_checkpoint_of_tensorflow_restores_model_and_optimizer(tmp_path):
    model = cases.trained(optimizers.LazyAdam(0.5))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = unzipped(OURS, "checkpoint", tmp_path)
    checkpoint.read(f"{path}/it").assert_existing_objects_matched()
    same(cases.weights_after_a_step(model), EXPECTED[OURS]["checkpoint"], LIKE_ADAM)


@pytest.mark.parametrize("tag", TAGS)
def test_a_clusters_checkpoint_is_the_model_it_was(tag, tmp_path):
    folder = unzipped(tag, "hybrid_checkpoint", tmp_path)
    step, model = next(iter_checkpoints(cases.for_servers, folder, 3))
    assert step == 3
    same(cases.predictions(model, cases.BATCH), EXPECTED[tag]["hybrid"])


def test_a_training_continues_from_a_checkpoint(tmp_path):
    """One of this package; variables of optimizers have other names in the other Keras."""
    model = training.make_small_model()
    reader = CheckpointManager(unzipped(OURS, "training_checkpoint", tmp_path)).latest()
    assert reader.manifest.step == 2
    model.train_on_batch(*next(training.batches(1)))  # in Keras 2 it makes the slots
    restore(reader, variables_of(model))
    same([w.tolist() for w in model.get_weights()], EXPECTED[OURS]["training_checkpoint"], 0)


def test_a_finished_run_predicts_what_it_did(tmp_path):
    run = unzipped(OURS, "run", tmp_path / "run")
    data, out = write_criteo(tmp_path / "data.tsv", 40, seed=1), tmp_path / "answers"
    main(["predict", run, "--data", data, "--out", str(out)])
    same(np.loadtxt(out), EXPECTED[OURS]["run"])


# They show nothing of Keras 2 that the others do not, and take as long as all of them.
ONE_TF = {n: pytest.mark.one_tf if n in ("metrics", "train") else () for n in CALCULATIONS}


@pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in ONE_TF.items()])
def test_the_numbers_of_a_calculation_are_the_recorded_ones(name, tmp_path):
    CALCULATIONS[name](tmp_path)
