"""Repeats a training, and compares the log losses of the results."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.data import Source, original_errors
from twml_ops.training.model import learning_rate_of, make_optimizer
from twml_ops.training.sources import LARGE_BATCH_SIZE, open_pair, parse_all

Concurrency = Literal["locked", "hogwild"]


@dataclasses.dataclass(frozen=True)
class StabilityOptions:
    """What the user chose; see `twml-ops stability --help`.

    Attributes:
        data: SOURCE of the training data.
        eval: SOURCE of the evaluation data; None: a part of `data` is held out.
        model: name of the model.
        optimizer: name of the optimizer.
        batch_size: number of examples in a batch.
        epochs: number of passes over the training data.
        runs: number of runs with each kind of steps.
        threads: number of threads of a Hogwild run.
        seed: seed of all runs.
    """

    data: str
    eval: str | None
    model: str
    optimizer: str
    batch_size: int
    epochs: int
    runs: int
    threads: int
    seed: int


def repeat_runs(options: StabilityOptions) -> Iterator[RepeatedRuns]:
    """Trains from the same weights on the same batches, with synchronous steps and by Hogwild.

    Yields:
        The results of the synchronous runs, then the results of the Hogwild runs.

    Raises:
        UserError: the optimizer is unknown.
        ValueError: the model is unknown, or data cannot be read.
    """
    train, held_out = open_pair(options.data, options.eval)
    with original_errors(train, held_out):
        parse_all(held_out)
        yield _repeat("synchronous", "locked", 1, options, train, held_out)
        yield _repeat("hogwild", "hogwild", options.threads, options, train, held_out)


def _repeat(
    name: str,
    concurrency: Concurrency,
    threads: int,
    options: StabilityOptions,
    train: Source,
    held_out: Source,
) -> RepeatedRuns:
    rate = learning_rate_of(options.optimizer, options.model)
    make_model = models.get(options.model)
    layout = models.layout_of(make_model)
    size = train.num_examples()
    steps = options.epochs * -(-size // options.batch_size)
    losses, seconds = [], 0.0
    for _ in range(options.runs):
        # A new model each time: the random state of an old one's dropout would continue.
        tf.keras.utils.set_random_seed(options.seed)
        model = make_model(train.schema, train.dataset(LARGE_BATCH_SIZE, layout=layout))
        optimizer = make_optimizer(options.optimizer, rate, steps, concurrency=concurrency)
        # One dataset for all epochs: the order of its n-th iteration depends on n.
        dataset = train.dataset(options.batch_size, shuffle=True, seed=options.seed, layout=layout)
        start = time.perf_counter()
        _train(model, optimizer, dataset.repeat(options.epochs), threads)
        seconds += time.perf_counter() - start
        scores = scoring.score(model, held_out.dataset(LARGE_BATCH_SIZE, layout=layout))
        losses.append(scoring.metrics(scores)["log_loss"])
    return RepeatedRuns(name, losses, options.runs * options.epochs * size / seconds)


def _train(model: Any, optimizer: Any, dataset: tf.data.Dataset, threads: int) -> None:
    """Trains with several threads, each of which takes the next batch when it has done its last."""
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
        except Exception as e:  # a thread does not pass exceptions on
            errors.append(e)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


@dataclasses.dataclass(frozen=True)
class RepeatedRuns:
    """The results of repeated runs.

    Attributes:
        name: "synchronous" or "hogwild".
        losses: log loss of each run on the evaluation data.
        examples_per_second: throughput of all runs together.
    """

    name: str
    losses: list[float]
    examples_per_second: float

    @property
    def mean(self) -> float:
        """Mean of the losses."""
        return float(np.mean(self.losses))

    @property
    def spread(self) -> float:
        """Largest loss minus smallest loss."""
        return max(self.losses) - min(self.losses)
