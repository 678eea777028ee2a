"""Prints the model that is going to be trained."""

from __future__ import annotations

import tensorflow as tf
from rich.console import Console

from twml_ops import layers
from twml_ops._keras import all_layers
from twml_ops.cli.render import run_summary
from twml_ops.cli.runs import tiered_tables


def print_model(console: Console, model: tf.keras.Model, optimizer: str) -> None:
    """Prints the name of a model, its number of weights, the optimizer, its boosted trees
    and the widths of the vectors of fields, if they differ.

    Args:
        console: terminal for the output.
        model: the model.
        optimizer: name of the optimizer.
    """
    # A worker of a cluster may have a stand-in for the model that its chief has built.
    found = all_layers(model) if isinstance(model, tf.keras.Model) else []
    trees = [(x.num_folds, x.num_trees) for x in found if isinstance(x, layers.BoostedTrees)]
    widths = [x.units for x in found if isinstance(x, layers.FieldEmbedding)]
    weights = tiered_tables.num_weights(model)
    run_summary.print_model(console, model.name, weights, optimizer, trees)
    for units in widths:
        if not isinstance(units, int):
            run_summary.print_widths(console, units)
