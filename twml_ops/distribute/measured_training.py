"""`python -m twml_ops.distribute.measured_training`: the trainings of `measure_costs`.

The argument is JSON: a list of trainings and the options of the trainer. `TF_CONFIG` describes the
cluster; without it the trainings run in this process alone, by `Model.fit`. At the beginning and at
the end of the measured steps of each, the process prints the CPU time that it has used.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import layers, optimizers
from twml_ops.distribute.parameter_server import Cluster, HybridTrainer
from twml_ops.planning import Job, Table

WEIGHTS = 2**24  # of all tables of a training; more than caches hold
BATCHES = 8  # which a training repeats
SLOTS = {0: "SGD", 1: "Adagrad", 2: "LazyAdam"}
"""Optimizers by the number of slots of a weight."""


@dataclass(frozen=True)
class MeasuredTraining:
    """A training of tables whose products go into one neuron.

    Attributes:
        batch: Examples in a batch.
        entries: Entries of an example in each table.
        units: Columns of each table.
        ids: Number of ids that occur in each table, uniformly distributed; 0: all.
        tables: Number of tables.
        steps: Measured steps.
        warm_up: Steps before them.
    """

    batch: int
    entries: int
    units: int
    ids: int = 0
    tables: int = 1
    steps: int = 96
    warm_up: int = 16

    @property
    def rows(self) -> int:
        """Rows of each table."""
        return WEIGHTS // self.units // self.tables

    def job(self) -> Job:
        """Returns the job that this training is."""
        unique = None
        if self.ids:
            unique = Table(self.ids, self.units, self.entries).rows(self.batch)
        table = Table(self.rows, self.units, self.entries, unique)
        return Job((table,) * self.tables, self.batch)

    def model(self) -> tf.keras.Model:
        """Returns the model."""
        ids = [tf.keras.Input([None], dtype="int64", ragged=True) for _ in range(self.tables)]
        products = [
            layers.SparseLinear(self.units, self.rows, kernel_initializer="zeros")(i) for i in ids
        ]
        joined = products[0] if self.tables == 1 else tf.keras.layers.Concatenate()(products)
        return tf.keras.Model(ids, tf.keras.layers.Dense(1, activation="sigmoid")(joined))

    def batches(self) -> tf.data.Dataset:
        """Returns batches with random ids and labels, in memory, in an endless order."""
        rng = np.random.default_rng(0)
        ids = rng.permutation(self.rows)[: self.ids or self.rows]
        found = []
        for _ in range(BATCHES):
            lengths = np.full(self.batch, self.entries)
            features = tuple(
                tf.RaggedTensor.from_row_lengths(
                    rng.choice(ids, self.batch * self.entries), lengths
                )
                for _ in range(self.tables)
            )
            labels = rng.integers(2, size=[self.batch, 1])
            found.append((features, tf.constant(labels, tf.float32)))
        return repeated(found)


def repeated(batches: Sequence[Any]) -> tf.data.Dataset:
    """Returns batches in memory in an endless order. A generator would run Python for each.

    Args:
        batches: At least one nested structure of tensors.
    """
    each = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    return functools.reduce(tf.data.Dataset.concatenate, each).repeat()


def main() -> None:
    """Runs the trainings of the argument."""
    setting = json.loads(sys.argv[1])
    cluster, slots = Cluster.from_environment(), setting["slots"]
    if cluster.servers:
        cluster.connect(setting["timeout"])
    for number, fields in enumerate(setting["trainings"]):
        training = MeasuredTraining(**fields)
        optimizer = getattr(optimizers, SLOTS[slots])(0.01)

        report = _Reporter(number, training, cluster.is_chief)
        if cluster.servers:
            trainer = HybridTrainer(
                training.model,
                optimizer,
                "binary_crossentropy",
                cluster=cluster,
                name=f"costs{number}",
                timeout=setting["timeout"],
                **setting["options"],
            )
            _train_in_cluster(trainer, training, report)
        else:
            _train_alone(training, optimizer, report)
    sys.stdout.flush()
    os._exit(0)  # threads of TensorFlow may wait for servers


class _Reporter:
    """Prints the CPU time of this process at the beginning and the end of the measured steps."""

    def __init__(self, number: int, training: MeasuredTraining, is_chief: bool) -> None:
        self._number = number
        begin = training.warm_up
        self._events = [(begin, "begin"), (begin + training.steps, "end")] if is_chief else []

    def __call__(self, step: int, loss: Any = None) -> None:
        if self._events and step >= self._events[0][0]:
            _, event = self._events.pop(0)
            print(json.dumps([event, self._number, step, time.process_time()]), flush=True)


class _ReporterCallback(tf.keras.callbacks.Callback):
    def __init__(self, report: _Reporter) -> None:
        super().__init__()
        self._report = report

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._report(batch + 1)


def _train_in_cluster(
    trainer: HybridTrainer, training: MeasuredTraining, report: _Reporter
) -> None:
    batches = training.batches()
    trainer.fit(lambda _: batches, training.warm_up + training.steps, report)


def _train_alone(training: MeasuredTraining, optimizer: Any, report: _Reporter) -> None:
    model, batches = training.model(), training.batches()
    model.compile(optimizer, "binary_crossentropy", jit_compile=False)
    callbacks = [_ReporterCallback(report)]
    steps = training.warm_up + training.steps
    model.fit(batches, steps_per_epoch=steps, callbacks=callbacks, verbose=0)


if __name__ == "__main__":
    main()
