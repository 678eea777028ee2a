"""What a batch asks of the tables of a model, for a plan of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.parameter_server.placement import ParameterServerPlacement
from twml_ops.planning import Table


def sizes_of_tables(build: Callable[[], tf.keras.Model], features: Any) -> dict[str, Table]:
    """Counts what a batch has for each table of a model. The tables are not created.

    Args:
        build: Returns a new model.
        features: The features of a batch of B examples.

    Returns:
        The tables by "layer/weight", in the order in which layers create them, with the entries and
        the outputs of an example, and the distinct ids of the batch. A table without entries in
        the batch has one.
    """
    found = ParameterServerPlacement("", [], tf.float32, False)
    with placement.placement_scope(found):
        model = build()
        found.forget_calls()
        model(features, training=False)
    batch = int(tf.shape(tf.nest.flatten(features, expand_composites=False)[0])[0])
    tables = {}
    for table in found.tables:
        sizes = [s for s in found.batch_sizes if s.table is table]
        entries, distinct, rows = (
            sum(int(getattr(s, name)) for s in sizes)
            for name in ("num_entries", "num_distinct", "num_rows")
        )
        input_dim, units = table.shape
        sent = units if table.module is None else table.module.columns
        tables[table.path] = Table(
            input_dim,
            units,
            max(entries, 1) / batch,
            min(max(distinct, 1), input_dim),
            outputs=max(1, round(rows * sent / batch)),
        )
    return tables
