"""Data and trainings that all parts of the benchmark share."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.quality import data_sets, mixed_orders, semantic_clusters
from benchmarks.quality.planted_files import write_files
from twml_ops import models
from twml_ops.data import Source, open_source, split_for_validation

READ_BATCH_SIZE = 4096
TRIAL = ", trial "
"""In the names of trainings that only choose a setting; the tables leave them out."""
TUNING_SEED = 100
"""Of the trials: the planted task, weights and order. No figure in a table has this seed."""
L2 = (0.03, 0.1, 0.3)
"""The strengths of the regularization of vectors; that of linear weights is a tenth of it."""
Metrics = dict[str, Any]
Done = Mapping[str, Metrics]
"""The metrics of the contenders that are measured."""
Measured = Iterator[tuple[str, Metrics]]


class Settings(NamedTuple):
    """What all trainings of a measurement have in common.

    Attributes:
        epochs: passes over the training part.
        batch_size: examples of a step.
    """

    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Task:
    """A data set, divided into three parts.

    Attributes:
        name: the name of the data set.
        train: what models are trained on.
        validation: what chooses epochs, rates and weights.
        test: what the figures are computed on.
    """

    name: str
    train: Source
    validation: Source
    test: Source

    def batches(
        self, part: Source, build: Any, batch_size: int, seed: int | None = None
    ) -> tf.data.Dataset:
        """Batches in the layout that a model of `models.get` takes; shuffled with a seed."""
        part.num_examples()  # so that the dataset knows its length
        return part.dataset(
            batch_size, shuffle=seed is not None, seed=seed or 0, layout=models.layout_of(build)
        )


PLANTED: dict[str, Any] = {"mixed": mixed_orders, "clusters": semantic_clusters}


@functools.lru_cache(maxsize=32)
def open_task(name: str, seed: int, rows: int | None, folder: Path) -> Task:
    """Opens a data set.

    Args:
        name: the planted "mixed" or "clusters", of which each seed is another task; "criteo";
            "flights"; or NAME=SOURCE.
        seed: the seed of the planted data.
        rows: the rows of the planted data; None: as many as their generator makes by itself. Of
            others, about as many random rows of the training data; None: all.
        folder: the folder of the files of criteo.

    Returns:
        The task. A fifth of the training data is validation data, as `Source.split` divides it.
    """
    if name in PLANTED:
        module = PLANTED[name]
        count = module.ROWS if rows is None else rows
        where = Path(tempfile.gettempdir()) / "twml_ops_planted" / f"{name}_{seed}_{count}"
        paths = write_files(where, name, *module.generate(seed, count), module.TEST_SHARE)
        source, test = (open_source(f"csv:{path}") for path in paths)
        source.num_examples()
    else:
        source, test = data_sets.get(name, folder).open()
    train, validation = source.split()
    if rows is not None and name not in PLANTED:
        share = rows / train.num_examples()
        train = split_for_validation(train, "random", share, TUNING_SEED).validation
    return Task(name, train, validation, test)


def log_loss(labels: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> float:
    """The mean log loss of predictions [R]."""
    p = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(labels > 0.5, np.log(p), np.log1p(-p))))


def normalized_entropy(labels: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> float:
    """The log loss, divided by that of the share of positives (He et al. 2014)."""
    base = labels.astype(np.float64).mean()
    entropy = -(base * np.log(base) + (1 - base) * np.log1p(-base))
    return float(log_loss(labels, probabilities) / entropy)


def predict(model: tf.keras.Model, batches: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(labels, probabilities), [R] each."""
    labels, predicted = [], []
    for features, y, *_ in batches:
        labels.append(np.asarray(y).reshape(-1))
        predicted.append(np.asarray(model(features, training=False)).reshape(-1))
    return np.concatenate(labels), np.concatenate(predicted)


def entropy_on(model: tf.keras.Model, task: Task, part: Source, build: Any) -> float:
    """The normalized entropy of a model on a part of the data."""
    return normalized_entropy(*predict(model, task.batches(part, build, READ_BATCH_SIZE)))


def make(build: Any, task: Task, options: dict[str, Any], seed: int) -> tf.keras.Model:
    """An untrained model, whose weights depend on the seed only."""
    tf.keras.utils.set_random_seed(seed)
    batches = task.batches(task.train, build, READ_BATCH_SIZE)
    return build(task.train.schema, batches, **options)


def fit(
    model: tf.keras.Model,
    task: Task,
    build: Any,
    optimizer: Any,
    settings: Settings,
    seed: int,
    callbacks: Sequence[Any] = (),
) -> None:
    """Trains a model on the training part."""
    model.compile(optimizer, "binary_crossentropy", jit_compile=False)
    batches = task.batches(task.train, build, settings.batch_size, seed)
    epochs, every = settings.epochs, list(callbacks)
    model.fit(batches, epochs=epochs, verbose=0, shuffle=False, callbacks=every)


class BestEpoch(tf.keras.callbacks.Callback):
    """Keeps the weights of the epoch with the lowest normalized entropy on the validation part.

    Args:
        task: the data.
        build: builds the model.
        patience: number of epochs in a row without a lower one that end the training; None: none.

    Attributes:
        entropies: after each epoch.
    """

    def __init__(self, task: Task, build: Any, patience: int | None = None) -> None:
        super().__init__()
        self._task, self._build, self._patience = task, build, patience
        self.entropies: list[float] = []
        self._weights: Any = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Evaluates the epoch."""
        del epoch, logs
        entropy = entropy_on(self.model, self._task, self._task.validation, self._build)
        if entropy < min(self.entropies, default=np.inf):
            self._weights = self.model.get_weights()
        self.entropies.append(entropy)
        patience = self._patience
        if patience and min(self.entropies) < min(self.entropies[-patience:]):
            self.model.stop_training = True

    def metrics(self) -> Metrics:
        """The `lowest` entropy, and the number of `epochs` after which the model had it."""
        lowest = min(self.entropies)
        return {"lowest": lowest, "epochs": float(1 + self.entropies.index(lowest))}

    def on_train_end(self, logs: Any = None) -> None:
        """Restores the best epoch."""
        del logs
        self.model.set_weights(self._weights)


def missing_trials(
    contender: str, values: Sequence[float], done: Done
) -> Iterator[tuple[str, float]]:
    """The trainings that only choose a setting and are not measured: (name, value of the setting).

    Args:
        contender: the contender.
        values: the values of the setting.
        done: trials that are measured.
    """
    for value in values:
        name = f"{contender}{TRIAL}{value:g}"
        if name not in done:
            yield name, value


def best_trial(done: Done, contender: str) -> Metrics:
    """The trial of a contender with the `lowest` normalized entropy on the validation part."""
    tried = [found for name, found in done.items() if name.startswith(contender + TRIAL)]
    return min(tried, key=lambda each: float(each["lowest"]))


def regularized(options: dict[str, Any], l2: float) -> dict[str, Any]:
    """The options of a model with a strength of the regularization."""
    return {**options, "l2": l2, "linear_l2": l2 / 10}
