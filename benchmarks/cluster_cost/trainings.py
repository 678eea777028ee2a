"""The measured trainings: that of `twml-ops train --data flights`, and the reference workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from benchmarks.distributed import hybrid
from benchmarks.distributed.grid import WORKLOAD
from benchmarks.distributed.stock import RATE
from twml_ops import models
from twml_ops.cli.runs import optimizers
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.make_model import model_maker
from twml_ops.cli.runs.sources import open_pair
from twml_ops.models import sparse_mlp
from twml_ops.optimizers import SGD

BATCHES = 8  # of the reference workload, which repeats them


@dataclass(frozen=True)
class Training:
    """A model, its optimizer, its loss, and its batches in an endless order.

    Attributes:
        model: () -> an uncompiled Keras model.
        optimizer: an optimizer of twml_ops.
        loss: the loss, as for `Model.compile`.
        batches: () -> the batches (x, y).
    """

    model: Callable[[], Any]
    optimizer: Any
    loss: str
    batches: Callable[[], tf.data.Dataset]


def flights(steps: int) -> Training:
    """`twml-ops train --data flights --model sparse_mlp` with its defaults, B = 256."""
    config = RunConfig("flights", model="sparse_mlp")
    source, _ = open_pair(config.data, None)
    layout = models.layout_of(sparse_mlp)
    rate = optimizers.learning_rate_of(config.optimizer, config.model)

    def batches() -> tf.data.Dataset:
        size, seed = config.batch_size, config.seed
        return source.dataset(size, shuffle=True, seed=seed, layout=layout).repeat()

    return Training(
        lambda: model_maker(config)(source),
        optimizers.create(config.optimizer, rate, steps),
        "binary_crossentropy",
        batches,
    )


def reference(steps: int) -> Training:
    """A table [2^19, 128] of the binary ids of 512 examples, about 200 each."""
    del steps
    batches = WORKLOAD.batches(BATCHES, seed=1)

    def dataset() -> tf.data.Dataset:
        signature = (
            tf.RaggedTensorSpec([None, None], tf.int64, row_splits_dtype=tf.int64),
            tf.TensorSpec([None, 1], tf.float32),
        )
        made = [hybrid.inputs(b) for b in batches]
        return tf.data.Dataset.from_generator(lambda: made, output_signature=signature).repeat()

    return Training(lambda: hybrid.model(WORKLOAD), SGD(RATE), "mse", dataset)


TRAININGS: dict[str, Callable[[int], Training]] = {"flights": flights, "reference": reference}
"""Name -> a function of the number of steps."""
