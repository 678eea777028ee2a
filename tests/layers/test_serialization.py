"""Everything public goes through `keras.saving` and JSON, and comes back as it was."""

import importlib
import json

import pytest
import tensorflow as tf

from twml_ops import layers, metrics, models, optimizers, research
from twml_ops._keras import KERAS_3

# Not every tf.keras has it: the package it stands for, keras or tf_keras, does.
saving = importlib.import_module(tf.keras.Model.__module__.partition(".")[0]).saving
TABLES = {"a": layers.SparseTable(9, 2), "b": layers.SparseTable(5, 3, "zeros", "bfloat16")}
OF_LAYERS = {
    "BoostedTrees": lambda: layers.BoostedTrees(4, 2, num_folds=3, learning_rate=0.2, seed=5),
    "CategoryRows": lambda: layers.CategoryRows(3, min_count=4, max_rows=[9, 8, 7], num_bags=1),
    "CountStatistics": lambda: layers.CountStatistics(3, crosses=[(0, 2)], num_folds=4),
    "Cross": lambda: layers.Cross(2, activation="tanh", diag_scale=0.5),
    "DotInteraction": lambda: layers.DotInteraction(),
    "DynamicLookup": lambda: layers.DynamicLookup(9, 3, "age", 5, 2, sketch_width=64, seed=3),
    "DynamicSparseLinear": lambda: layers.DynamicSparseLinear(
        4, 9, min_count=2, eviction="lfu", activation="relu", kernel_dtype="bfloat16"
    ),
    "FactorizationMachine": lambda: layers.FactorizationMachine(pool=False),
    "FieldEmbedding": lambda: layers.FieldEmbedding([5, 7, 9], 4, "mean", num_bags=1, l2=0.5),
    "FieldLogarithms": lambda: layers.FieldLogarithms(3),
    "FieldQuantiles": lambda: layers.FieldQuantiles(3, num_bins=7),
    "GroupedSparseLinear": lambda: layers.GroupedSparseLinear(TABLES, {"x": "a", "y": "b"}),
    "HashingDiscretizer": lambda: layers.HashingDiscretizer(
        8, num_bins=3, unknown="drop", placement="device"
    ),
    "IsotonicCalibration": lambda: layers.IsotonicCalibration(),
    "MDLDiscretizer": lambda: layers.MDLDiscretizer(
        num_classes=3, missing="drop", placement="host"
    ),
    "MaxNorm": lambda: layers.MaxNorm(9, epsilon=1e-3, bias_initializer="ones", placement="device"),
    "OnlineStandardize": lambda: layers.OnlineStandardize(9, use_bias=False),
    "PercentileDiscretizer": lambda: layers.PercentileDiscretizer(
        {1: 3, 2: 5}, side="right", placement="host"
    ),
    "PlattScaling": lambda: layers.PlattScaling(),
    "SparseLinear": lambda: layers.SparseLinear(
        4, 9, activation="relu", num_partitions=2, partition_axis="column", kernel_dtype="bfloat16"
    ),
    "StringHash": lambda: layers.StringHash(["user", "item"]),
    "TargetStatistics": lambda: layers.TargetStatistics(2, time_boundaries=[7], output="mean"),
}
OF_OPTIMIZERS = {
    "SGD": lambda: optimizers.SGD(0.5, clipnorm=1.0),
    "Momentum": lambda: optimizers.Momentum(0.5, nesterov=True),
    "Adagrad": lambda: optimizers.Adagrad(optimizers.LinearScalingWarmup(0.25, 512, 256, 10)),
    "RowWiseAdagrad": lambda: optimizers.RowWiseAdagrad(0.5, concurrency="hogwild"),
    "LazyAdam": lambda: optimizers.LazyAdam(0.5, beta_1=0.5, weight_decay=0.5),
    "Ftrl": lambda: optimizers.Ftrl(0.5, l1_regularization_strength=0.5),
    "CompositeOptimizer": lambda: optimizers.CompositeOptimizer(
        tf.keras.optimizers.Adam(0.5), {"user": optimizers.LazyAdam(0.25)}
    ),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.Adagrad(0.5)),
    "LinearScalingWarmup": lambda: optimizers.LinearScalingWarmup(0.5, 512, 256, 10, "sqrt"),
}
OF_METRICS = {
    "PRAUC": lambda: metrics.PRAUC(),
    "ROCAUC": lambda: metrics.ROCAUC(),
    "CalibrationRatio": lambda: metrics.CalibrationRatio(name="c"),
    "ExactPRAUC": lambda: metrics.ExactPRAUC(),
    "ExactROCAUC": lambda: metrics.ExactROCAUC(),
    "NormalizedEntropy": lambda: metrics.NormalizedEntropy(name="n"),
    "RelativeCrossEntropy": lambda: metrics.RelativeCrossEntropy(),
    "Segmented": lambda: metrics.Segmented(metrics.ROCAUC(), ["x", "y"]),
    "Windowed": lambda: metrics.Windowed(metrics.NormalizedEntropy(), 7),
}
OF_RESEARCH = {
    "DHENBlock": lambda: research.DHENBlock(
        ["dot", research.FieldAttention(2, num_heads=2)], num_outputs=2, ensemble="weighted"
    ),
    "FieldAttention": lambda: research.FieldAttention(3, num_heads=2, hidden=5),
    "FieldConvolution": lambda: research.FieldConvolution(3, filters=2, kernel_size=5),
    "FieldCross": lambda: research.FieldCross(3, rank=2),
    "FieldDot": lambda: research.FieldDot(3, hidden=[7, 5]),
    "FieldLinear": lambda: research.FieldLinear(3),
    "LearnedHash": lambda: research.LearnedHash(3, num_bags=1),
    "Shampoo": lambda: research.Shampoo(0.5, start_preconditioning_step=3),
    "Tower": lambda: research.Tower(
        layers.FieldEmbedding([5, 4], 3, l2=0.5), research.TowerModule(0.5, num_crosses=2)
    ),
    "TowerModule": lambda: research.TowerModule(0.5, (2, 0), num_crosses=2, rank=3),
}
EVERYTHING = {
    **OF_LAYERS,
    **OF_OPTIMIZERS,
    **OF_METRICS,
    **OF_RESEARCH,
    "Bias": lambda: models.Bias([0.5, -1.0]),
    "HashedIds": lambda: models.HashedIds(6),
    "SplitLabels": lambda: models.SplitLabels(["click", "sale"]),
}


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (layers, OF_LAYERS),
        (optimizers, OF_OPTIMIZERS),
        (metrics, OF_METRICS),
        (research, OF_RESEARCH),
    ],
    ids=["layers", "optimizers", "metrics", "research"],
)
def test_everything_public_is_here(module, known):
    # Functions, a part of a layer's config, and what layers and optimizers are made of.
    others = {"average_precision", "roc_auc", "CategoryCounts", "FieldMoments", "IdCounts"}
    others |= {"SparseTable", "SlotSpec", "SparseOptimizer", "UpdateRule", "choose_crosses"}
    others |= {"DHEN_MODULES", "FieldInteraction", "SnapshotEnsemble", "dhen", "learn_hash"}
    others |= {"greedy_weights", "log_loss_weights"}
    others |= {"BYTES_PER_ID", "HashPlan", "load_hash", "plan_hash", "save_hash"}
    others |= {"averaged_weights", "SwapEMAWeights", "Tiered", "prefetch_rows", "save_model"}
    others |= {"clone_model", "OptimizerOptions", "get"}
    assert set(known) == set(module.__all__) - others


@pytest.mark.parametrize("name", EVERYTHING)
def test_it_comes_back_from_json_as_it_was(name):
    made = EVERYTHING[name]()
    text = json.dumps(saving.serialize_keras_object(made))
    again = saving.deserialize_keras_object(json.loads(text))
    assert type(again) is type(made)
    config = made.get_config()
    assert json.dumps(saving.serialize_keras_object(again)) == text
    assert type(made).from_config(config).get_config() == made.get_config()
    if KERAS_3 or name != "LossScaleOptimizer":  # which is Keras 2's own there
        assert "Twml" in (saving.get_registered_name(type(made)) or "")
