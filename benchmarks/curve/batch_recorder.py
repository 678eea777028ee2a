"""Reads from a model and a batch what `twml_ops.planning` needs to know."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.cluster_cost.trainings import Training
from twml_ops.distribute.parameter_server.table_plan import REPLICATED_ROWS
from twml_ops.placement import Placement, placement_scope, set_placement
from twml_ops.placement.entries import CsrEntries
from twml_ops.planning import Job, Table


class BatchRecorder(Placement):
    """Tables in this process, which remember the entries that they are multiplied with.

    Attributes:
        products: the products of each multiplication the table, the number of examples, the ids and
            whether there are values.
    """

    def __init__(self) -> None:
        self.products: list[tuple[Any, int, np.ndarray, bool]] = []

    def create(self, add: Any, shape: Any, initializer: Any, name: str, dtype: Any) -> Any:
        """See `Placement.create`."""
        variable = super().create(add, shape, initializer, name, dtype)
        set_placement(variable, self)
        return variable

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement.sparse_linear`."""
        if tf.executing_eagerly():
            ids, values, splits = entries
            self.products.append((table, len(splits) - 1, np.asarray(ids), values is not None))
        return super().sparse_linear(entries, table)


def job_of(training: Training, slots: int, batches: int = 1) -> Job:
    """The tables of a training, its first batches as one batch, and its dense weights.

    Small tables are dense weights, as in a cluster.

    Args:
        training: the training.
        slots: numbers that its optimizer stores for each weight.
        batches: number of the batches.
    """
    recorder = BatchRecorder()
    first = list(training.batches(0).take(batches))
    x, y = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *first)
    with placement_scope(recorder):
        model = training.model()
        recorder.products.clear()
        model(x)
    batch = len(y)
    on_servers = [p for p in recorder.products if p[0].shape[0] > REPLICATED_ROWS]
    tables = tuple(
        Table(*table.shape, entries=len(ids) / batch, unique=len(np.unique(ids)))
        for table, _, ids, _ in on_servers
    )
    weights = sum(int(tf.size(w)) for w in model.trainable_variables)
    return Job(
        tables,
        batch,
        values=any(values for *_, values in on_servers),
        dense=weights - sum(t.input_dim * t.units for t in tables),
        slots=slots,
    )
