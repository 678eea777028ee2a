"""Runs that differ in nothing but time."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.cli.runs import optimizers
from twml_ops.cli.runs.sources import open_pair
from twml_ops.cli.runs.train import LARGE_BATCH
from twml_ops.data import original_errors


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user chose; see `twml-ops stability --help`."""

    data: str
    eval: str | None
    model: str
    optimizer: str
    batch_size: int
    epochs: int
    runs: int
    threads: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Kind:
    """Runs of one kind.

    Attributes:
        name: "synchronous" or "hogwild".
        losses: log loss on the data held out, of each run.
        examples_per_second: of all.
    """

    name: str
    losses: list[float]
    examples_per_second: float

    @property
    def mean(self) -> float:
        """Of the losses."""
        return float(np.mean(self.losses))

    @property
    def spread(self) -> float:
        """The largest loss minus the smallest."""
        return max(self.losses) - min(self.losses)


def run(settings: Settings) -> Iterator[Kind]:
    """Trains, synchronously and by Hogwild, from the same weights on the same batches.

    Raises:
        UserError: an unknown optimizer, or a loss that became NaN.
        ValueError: an unknown model, or data that cannot be read.
    """
    rate = optimizers.learning_rate_of(settings.optimizer)
    train, held_out = open_pair(settings.data, settings.eval)
    with original_errors(train, held_out):
        size = train.num_examples()
        steps = settings.epochs * -(-size // settings.batch_size)
        build = models.get(settings.model)
        for name, concurrency in (("synchronous", "locked"), ("hogwild", "hogwild")):
            losses, seconds = [], 0.0
            for _ in range(settings.runs):
                # A new model each time: its dropout would go on where the last one's stopped.
                tf.keras.utils.set_random_seed(settings.seed)
                model = build(train.schema, train.dataset(LARGE_BATCH))
                optimizer = optimizers.create(
                    settings.optimizer, rate, steps, concurrency=concurrency
                )
                # One dataset for all epochs: its n-th iteration has the order given by n.
                dataset = train.dataset(settings.batch_size, shuffle=True, seed=settings.seed)
                start = time.perf_counter()
                threads = 1 if name == "synchronous" else settings.threads
                _train(model, optimizer, dataset.repeat(settings.epochs), threads)
                seconds += time.perf_counter() - start
                scores = scoring.score(model, held_out.dataset(LARGE_BATCH))
                losses.append(scoring.metrics(scores)["log_loss"])
            yield Kind(name, losses, settings.runs * settings.epochs * size / seconds)


def _train(model: Any, optimizer: Any, dataset: tf.data.Dataset, threads: int) -> None:
    """Every thread takes the next batch as soon as it is done with its last."""
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.BinaryCrossentropy()

    @tf.function(reduce_retracing=True)
    def step(features: Any, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(features, training=True))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    step.get_concrete_function(*dataset.element_spec)
    batches, lock = iter(dataset), threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not errors:
                with lock:
                    batch = next(batches, None)
                if batch is None:
                    return
                step(*batch)
        except Exception as e:  # threads lose them
            errors.append(e)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
