"""The share of the boosted trees in the mean with the net is chosen by the validation data."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import models
from twml_ops.cli import main
from twml_ops.data import open_source
from twml_ops.training.config import RunConfig
from twml_ops.training.trained_run import TrainedRun
from twml_ops.training.tree_share import TreeShareCallback, TreeShares, shares_of

pytest.importorskip("lightgbm")
pytestmark = pytest.mark.usefixtures("bare_runs")

SHARES = (0.5, 0.75, 1.0)


def examples(n, labels=1, noise=1.0, seed=0):
    """Logits of a net with noise and of trees without, labels drawn by the trees, and weights."""
    rng = np.random.default_rng(seed)
    trees = rng.normal(size=(n, labels)) * 2
    net = trees + noise * rng.normal(size=(n, labels))
    y = (rng.random((n, labels)) < 1 / (1 + np.exp(-trees))).astype(np.float32)
    return np.concatenate([net, trees], 1).astype(np.float32), y, rng.random(n).astype(np.float32)


def batches(x, y, w=None, size=700):
    parts = (x, y) if w is None else (x, y, w)
    return [
        tuple(map(tf.constant, p))
        for p in zip(*(np.array_split(c, len(x) // size) for c in parts), strict=True)
    ]


def reference(x, y, w, share):
    """The mean loss with a share, example by example."""
    total, half = 0.0, x.shape[1] // 2
    for row, labels, weight in zip(np.float64(x), y, w, strict=True):
        p = 1 / (1 + np.exp(-((1 - share) * row[:half] + share * row[half:])))
        total += weight * -np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p))
    return total / w.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("labels", [1, 2])
def test_the_share_with_the_lowest_loss_is_chosen_if_it_is_clear(labels, weighted):
    x, y, w = examples(4000, labels, noise=3.0)
    given = w if weighted else np.ones_like(w)
    found = TreeShares(lambda features: features).better(batches(x, y, w if weighted else None))
    losses = {share: reference(x, y, given, share) for share in SHARES}
    assert found["tree_share"] == min(losses, key=losses.get) == 1.0
    np.testing.assert_allclose(found["val_loss"], losses[1.0], rtol=1e-6)
    several = {"multi_label": True, "num_labels": labels} if labels > 1 else {}
    auc = tf.keras.metrics.AUC(**several)
    auc.update_state(y, 1 / (1 + np.exp(-np.float64(x[:, labels:]))), given)
    np.testing.assert_allclose(found["val_auc"], float(auc.result()), rtol=1e-6)


def test_the_trees_keep_their_weight_if_the_net_is_better():
    x, y, _ = examples(4000, noise=3.0)
    assert TreeShares(lambda features: features).better(batches(x[:, ::-1], y)) == {}


def test_the_share_is_a_half_where_chance_would_choose():
    for seed in range(20):  # the net and the trees are equally good, with noise of their own
        x, y, _ = examples(1000, noise=0.0, seed=seed)
        noise = np.random.default_rng(seed).normal(size=x.shape).astype(np.float32)
        assert TreeShares(lambda features: features).better(batches(x + noise, y, size=500)) == {}


def test_callbacks_that_follow_see_the_metrics_with_the_share():
    x, y, w = examples(4000, noise=3.0)
    data = batches(x, y, w)
    for name in ("val_loss", "val_mean_loss"):
        logs = {"val_loss": 9.0, name: 9.0, "val_auc": 0.1}
        TreeShareCallback(TreeShares(lambda features: features), data).on_epoch_end(0, logs)
        np.testing.assert_allclose(logs[name], reference(x, y, w, 1.0), rtol=1e-6)
        assert logs["tree_share"] == 1.0
        assert logs["val_auc"] > 0.5


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """A file whose labels are steps of numbers, which trees find and a small net does not."""
    rng = np.random.default_rng(0)
    x = rng.random((2500, 2))
    y = np.floor(x[:, 0] * 40) % 2
    path = tmp_path_factory.mktemp("data") / "steps.csv"
    rows = [f"{int(b)},{u:.6f},{v:.6f}\n" for b, (u, v) in zip(y, x, strict=True)]
    path.write_text("label,u,v\n" + "".join(rows))
    return f"csv:{path}"


OPTIONS = ["--model", "dcn", "--set", "hidden=2", "--set", "num_crosses=1"]
OPTIONS += ["--set", "tree_ensembles=1", "--max-epochs", "2"]


def test_train_uses_the_share_that_was_best_on_the_validation_data(steps, tmp_path):
    out = tmp_path / "run"
    main(["train", "--data", steps, "--eval", steps, "--out", str(out), *OPTIONS])
    facts = json.loads((out / "run.json").read_text())
    model = TrainedRun(out).model
    share = model.get_layer("mean_logit").share
    assert facts["model_options"]["tree_share"] == share > 0.5
    both, half = models.averaged_logits(model), {}
    for features, y in open_source(steps).batches(4000, layout=models.layout_of(model)):
        net, trees = tf.split(both(features), 2, axis=1)
        half = {s: bce(y, models.weighted_mean(net, trees, s)) for s in (0.5, share)}
        np.testing.assert_allclose(bce(y, logits(model(features))), half[share], rtol=1e-4)
    assert half[share] < half[0.5] - 0.01


def logits(p):
    return np.log(p / (1 - p))


def bce(y, z):
    return float(tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, z.dtype), z)))


def test_a_share_that_is_given_is_not_chosen_again():
    inputs = [tf.keras.Input((1,)), tf.keras.Input((1,))]
    model = tf.keras.Model(inputs, models.MeanLogit()(inputs))
    config = RunConfig("", model="dcn")
    assert shares_of(model, config) is not None
    for given in (
        {"model_options": {"tree_share": 0.5}},
        {"from_run": "out/earlier"},
        {"refit": False},  # the model is kept, and may be published already
    ):
        assert shares_of(model, dataclasses.replace(config, **given)) is None
    assert shares_of(tf.keras.Model(inputs, inputs[0]), config) is None
