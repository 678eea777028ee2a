"""The measured trainings: `twml-ops train --data flights`, a large table, Criteo's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.distributed import hybrid
from benchmarks.distributed.grid import WORKLOAD
from benchmarks.distributed.stock import RATE
from twml_ops import models
from twml_ops.data import Schema
from twml_ops.distribute.measured_training import repeated
from twml_ops.models import sparse_mlp
from twml_ops.optimizers import SGD
from twml_ops.training.config import RunConfig
from twml_ops.training.model import learning_rate_of, make_optimizer, model_maker
from twml_ops.training.sources import open_pair

BATCHES = 8  # of the reference workload and of Criteo's shape, which repeat them
EVALUATION_BATCH = 4096
CRITEO = Schema(
    tuple(f"I{i}" for i in range(1, 14)), tuple(f"C{i}" for i in range(1, 27)), 0, "a click"
)
CRITEO_BATCH, CRITEO_BITS, CRITEO_SKEW = 512, 20, 1.2


@dataclass(frozen=True)
class Training:
    """A model, its optimizer, its loss, and its batches in an endless order.

    Attributes:
        model: () -> an uncompiled Keras model.
        optimizer: an optimizer of twml_ops.
        loss: the loss, as for `Model.compile`.
        batches: number of the worker -> its batches (x, y).
        held_out: () -> other batches for an evaluation; None if the labels are random.
    """

    model: Callable[[], Any]
    optimizer: Any
    loss: str
    batches: Callable[[int], tf.data.Dataset]
    held_out: Callable[[], tf.data.Dataset] | None = None


def flights(steps: int) -> Training:
    """`twml-ops train --data flights --model sparse_mlp` with its defaults, B = 256."""
    config = RunConfig("flights", model="sparse_mlp")
    source, held_out = open_pair(config.data, None)
    layout = models.layout_of(sparse_mlp)
    rate = learning_rate_of(config.optimizer, config.model)

    def batches(worker: int) -> tf.data.Dataset:
        size, seed = config.fixed_batch_size, config.seed + worker
        return source.dataset(size, shuffle=True, seed=seed, layout=layout).repeat()

    return Training(
        lambda: model_maker(config)(source),
        make_optimizer(config.optimizer, rate, steps),
        "binary_crossentropy",
        batches,
        lambda: held_out.dataset(EVALUATION_BATCH, layout=layout),
    )


def reference(steps: int) -> Training:
    """A table [2^19, 128] of the binary ids of 512 examples, about 200 each."""
    del steps

    def batches(worker: int) -> tf.data.Dataset:
        return repeated([hybrid.inputs(b) for b in WORKLOAD.batches(BATCHES, seed=1 + worker)])

    return Training(lambda: hybrid.model(WORKLOAD), SGD(RATE), "mse", batches)


def criteo(steps: int) -> Training:
    """`sparse_mlp` on 13 random numbers and 26 random categories, as Criteo has, B = 512."""

    def made(worker: int) -> list[Any]:
        rng = np.random.default_rng(worker)
        return [_criteo_batch(rng) for _ in range(BATCHES)]

    def batches(worker: int) -> tf.data.Dataset:
        return repeated(made(worker))

    rate = learning_rate_of("adagrad", "sparse_mlp")
    return Training(
        lambda: sparse_mlp(CRITEO, batches(0).take(BATCHES), categorical_bits=CRITEO_BITS),
        make_optimizer("adagrad", rate, steps),
        "binary_crossentropy",
        batches,
    )


def _criteo_batch(rng: np.random.Generator) -> Any:
    """Features and labels of a batch. Each column has its own categories, by Zipf's law."""

    def ragged(matrix: np.ndarray) -> tf.RaggedTensor:
        lengths = np.full(len(matrix), matrix.shape[1])
        return tf.RaggedTensor.from_row_lengths(matrix.reshape(-1), lengths)

    numbers, columns = len(CRITEO.continuous), len(CRITEO.categorical)
    ranks = rng.zipf(CRITEO_SKEW, (CRITEO_BATCH, columns)) + (np.arange(columns) << 40)
    features = {
        "continuous_ids": ragged(np.tile(np.arange(numbers), (CRITEO_BATCH, 1))),
        "continuous_values": ragged(rng.normal(size=(CRITEO_BATCH, numbers)).astype(np.float32)),
        "categorical_ids": ragged(ranks),
    }
    return features, rng.integers(0, 2, (CRITEO_BATCH, 1)).astype(np.float32)


TRAININGS: dict[str, Callable[[int], Training]] = {
    "flights": flights,
    "reference": reference,
    "criteo": criteo,
}
"""Name -> a function of the number of steps."""
