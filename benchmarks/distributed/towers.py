"""Towers of fields whose servers send vectors, or the outputs of modules (`research.Tower`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.distributed.hybrid import PEER_SECONDS
from benchmarks.distributed.stock import RATE, Built
from benchmarks.workload import Batch, Workload
from twml_ops import layers, optimizers, research
from twml_ops.distribute import Cluster, HybridTrainer
from twml_ops.planning import ShardedTable, ShardingPlan

TOWERS = 4
FLAT = "vectors"
RATIOS = {"towers of 1/2": 1 / 2, "towers of 1/4": 1 / 4, "towers of 1/16": 1 / 16}
STRATEGIES = (FLAT, *RATIOS)


def field_ids(workload: Workload, batch: Batch) -> list[np.ndarray]:
    """The ids of the fields of each tower; `row_length` is the number of all fields.

    Args:
        workload: sizes of the table, which all fields share equally.
        batch: a batch of the workload.

    Returns:
        int64 [B, fields of the tower] for each tower.
    """
    ids = np.resize(batch.ids, (workload.batch_size, workload.row_length))
    return np.split(ids % rows_of_field(workload), TOWERS, axis=1)


def rows_of_field(workload: Workload) -> int:
    """The ids of a field, without the row for missing values."""
    return workload.input_dim // workload.row_length


def build(
    strategy: str,
    workload: Workload,
    batches: Sequence[Batch],
    name: str,
    servers: Sequence[str],
    workers: Sequence[str],
    index: int,
) -> Built:
    """Builds a strategy; see `builders.build`. Each tower has a table, whole on one server."""
    plan = None
    if strategy == FLAT:  # towers with modules are where this plan has the tables
        places = tuple(ShardedTable("table", i % len(servers)) for i in range(TOWERS))
        plan = ShardingPlan(places, (0.0,) * len(servers), (0.0,) * len(servers))
    trainer = HybridTrainer(
        lambda: model(workload, RATIOS.get(strategy)),
        optimizers.SGD(RATE),
        "mse",
        cluster=Cluster(servers, workers, "worker", index),
        plan=plan,
        timeout=PEER_SECONDS,
        name=name,
    )
    labels = tf.ones([workload.batch_size, 1])
    data = [(tuple(map(tf.constant, field_ids(workload, b))), labels) for b in batches]

    def run(count: int) -> list[float]:
        target = count + (0 if trainer.state is None else trainer.steps_done())
        return trainer.fit(lambda _: data, target).losses

    return run, trainer.release


def model(workload: Workload, ratio: float | None) -> tf.keras.Model:
    """Towers of fields and a dense net; without a ratio, a flat net of all vectors."""
    fields = workload.row_length // TOWERS
    inputs = [tf.keras.Input([fields], dtype="int64") for _ in range(TOWERS)]
    parts: list[Any] = []
    for i, ids in enumerate(inputs):
        rows = [1 + rows_of_field(workload)] * fields
        embedding = layers.FieldEmbedding(rows, workload.units, name=f"embedding_{i}")
        if ratio is None:
            parts.append(tf.keras.layers.Flatten()(embedding(ids)))
        else:
            parts.append(research.Tower(embedding, research.TowerModule(ratio))(ids))
    hidden = tf.keras.layers.Dense(64, "relu")(tf.keras.layers.Concatenate()(parts))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
