"""Towers of fields (DMT) beside the same model without towers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.published.task import (
    L2,
    READ_BATCH_SIZE,
    TUNING_SEED,
    BestEpoch,
    Done,
    Measured,
    Metrics,
    Settings,
    Task,
    best_trial,
    fit,
    log_loss,
    make,
    missing_trials,
    normalized_entropy,
    predict,
    regularized,
)
from twml_ops import models, optimizers
from twml_ops.planning import mean_vectors, partition_fields

CLAIM = (
    "Luo et al. 2024: no loss of accuracy, up to 1.9 × the training throughput at the scale of "
    "data centers."
)
DATA = ("criteo",)
FLAT = "flat"
TOWERS = 4
CONTENDERS: dict[str, tuple[str, float]] = {
    "coherent, 1/2": ("coherent", 1 / 2),
    "coherent, 1/4": ("coherent", 1 / 4),
    "coherent, 1/16": ("coherent", 1 / 16),
    "diverse, 1/4": ("diverse", 1 / 4),
    "in order, 1/4": ("in order", 1 / 4),
}
"""How the fields are divided, and the ratio of the tower modules."""
COMPARISONS = tuple((name, FLAT, "log_loss") for name in CONTENDERS)
_OPTIONS = {"trees": False, "statistics": False, "crosses": (), "units": 8}
_RATE = 0.002


def tune(task: Task, settings: Settings, done: Done) -> Measured:
    """Trains the flat model with each strength of regularization, and divides the fields by it.

    Args:
        task: the data.
        settings: of every training.
        done: trials that are measured.

    Yields:
        Trials, with what `measure` gives, and the fields of the towers of each strategy.
    """
    for name, l2 in missing_trials(FLAT, L2, done):
        model, metrics = _train(task, l2, TUNING_SEED, settings, {})
        yield name, {**metrics, "towers": divisions(model, task)}


def measure(task: Task, seed: int, settings: Settings, done: Done) -> Measured:
    """Trains the flat model and the models with towers with the setting of its best trial.

    Args:
        task: the data.
        seed: the seed of the weights and the order.
        settings: of every training; the validation part chooses the number of epochs.
        done: trials, and contenders that are measured.

    Yields:
        The contender, its `entropy` and `log_loss` on the test part, the `lowest` entropy on the
        validation part, its number of `epochs`, and the `leaving` numbers of an example; with
        towers, the mean cosines `within` and `between` them.
    """
    trial = best_trial(done, FLAT)
    for contender in [FLAT, *CONTENDERS]:
        if contender in done:
            continue
        options: dict[str, Any] = {}
        cosines = {}
        if contender != FLAT:
            strategy, ratio = CONTENDERS[contender]
            division = trial["towers"][strategy]
            options = {"field_towers": division["fields"], "tower_outputs": ratio}
            cosines = {name: division[name] for name in ("within", "between")}
        yield contender, {**_train(task, trial["l2"], seed, settings, options)[1], **cosines}


def divisions(model: tf.keras.Model, task: Task) -> dict[str, Any]:
    """Divides the fields of a flat model into towers.

    Args:
        model: trained.
        task: its data.

    Returns:
        For each strategy, and for the order of the columns, `fields` as of the option
        `field_towers`, and the mean cosines `within` and `between` the towers.
    """
    vectors = field_means(model, task)
    schema = task.train.schema
    names = [*schema.fields, *schema.continuous, *schema.bags]
    found: dict[str, Any] = {}
    for strategy in ("coherent", "diverse"):
        parts = partition_fields(vectors, TOWERS, strategy=strategy)  # type: ignore[arg-type]
        found[strategy] = {
            "fields": ["+".join(names[f] for f in fields) for fields in parts.fields],
            "within": parts.within,
            "between": parts.between,
        }
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.abs(unit @ unit.T)
    tower = np.arange(len(names)) * TOWERS // len(names)
    same, pairs = tower[:, None] == tower, np.triu(np.ones(cosines.shape, bool), 1)
    found["in order"] = {
        "fields": ["+".join(np.array(names)[tower == t]) for t in range(TOWERS)],
        "within": float(cosines[same & pairs].mean()),
        "between": float(cosines[~same & pairs].mean()),
    }
    return found


def field_means(model: tf.keras.Model, task: Task) -> np.ndarray:
    """The mean vectors [F, D] of the fields of a flat model over the training part."""
    layer = model.get_layer("embedding")
    ids = tf.keras.Model(model.inputs, layer.input)
    counts = [np.zeros(rows, np.int64) for rows in layer.num_rows]
    for features, *_ in task.batches(task.train, models.dcn, READ_BATCH_SIZE):
        of_batch = np.asarray(ids({name: features[name] for name in model.input}))
        for count, column in zip(counts, of_batch.T, strict=True):
            rows = np.where(column < 0, 0, 1 + column % (len(count) - 1))
            count += np.bincount(rows, minlength=len(count))
    table = np.asarray(tf.convert_to_tensor(layer.embeddings))
    return mean_vectors(np.split(table, np.cumsum(layer.num_rows)[:-1]), counts)


def _train(
    task: Task, l2: float, seed: int, settings: Settings, options: dict[str, Any]
) -> tuple[tf.keras.Model, Metrics]:
    build = models.dcn
    model = make(build, task, regularized(_OPTIONS | options, l2), seed)
    best = BestEpoch(task, build)
    fit(model, task, build, optimizers.LazyAdam(_RATE), settings, seed, [best])
    labels, predicted = predict(model, task.batches(task.test, build, READ_BATCH_SIZE))
    towers = [layer for layer in model.layers if layer.name.startswith("tower_module_")]
    embedding = model.get_layer("embedding")
    leaving = [int(tower.kernel.shape[1]) for tower in towers]
    return model, {
        "log_loss": log_loss(labels, predicted),
        "entropy": normalized_entropy(labels, predicted),
        **best.metrics(),
        "l2": l2,
        "leaving": sum(leaving) or len(embedding.num_rows) * embedding.units,
    }
