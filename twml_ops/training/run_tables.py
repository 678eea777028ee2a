"""The tables of a finished run, and what a batch of its data asks of them."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from twml_ops import models
from twml_ops._keras import clone_model
from twml_ops.data import original_errors
from twml_ops.distribute.parameter_server.table_plan import sizes_of_tables
from twml_ops.planning import Table
from twml_ops.training.errors import UserError
from twml_ops.training.trained_run import TrainedRun


def tables_of_run(folder: Path, data: str | None, batch: int) -> dict[str, Table]:
    """Counts what the first batch of the data of a run has for each table of its model.

    Args:
        folder: the folder of the run.
        data: SOURCE of the batch; None: the evaluation data of the run.
        batch: examples in the batch.

    Returns:
        The tables by their names in a cluster, "layer/weight", in the order in which layers create
        them, with the entries, the distinct ids and the outputs of an example.

    Raises:
        UserError: the folder is no finished run, the data have fewer examples than a batch, or the
            model has no tables.
        FileNotFoundError: a file of the data does not exist.
        DataError: the data cannot be read, or have other features.
    """
    run = TrainedRun(folder)
    source, model = run.source(data), run.model
    with original_errors(source):
        batches = iter(source.dataset(batch, layout=models.layout_of(model)))
        features, labels, *_ = next(batches, (None, []))
    sizes = {len(label) for label in tf.nest.flatten(labels)}
    if sizes != {batch}:
        raise UserError(
            f"{source.name}: has {max(sizes, default=0):,} examples, expected at least a batch of "
            f"{batch:,}: use other data or a smaller batch"
        )
    found = sizes_of_tables(lambda: clone_model(model), features)
    if not found:
        raise UserError(f"{folder}: its model has no tables that servers could have")
    return found
