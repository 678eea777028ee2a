"""Keras metrics, ours among them, as `eval_metric_ops`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf


def metric_ops(
    metrics: Iterable[tf.keras.metrics.Metric] | Mapping[str, tf.keras.metrics.Metric],
    labels: Any,
    predictions: Any,
    weights: Any = None,
) -> dict[str, tuple[tf.Tensor, Any]]:
    """The `eval_metric_ops` of Keras metrics, made in the graph they are to run in.

    Args:
        metrics: metrics, or name → metric.
        labels: as each metric takes them.
        predictions: as each metric takes them.
        weights: of the examples, or None.

    Returns:
        name → (value, update op).
    """
    given: Any = metrics
    named = given.items() if isinstance(given, Mapping) else [(m.name, m) for m in given]
    made = {}
    for name, metric in named:
        update = metric.update_state(labels, predictions, sample_weight=weights)
        for variable in metric.variables:
            # What an evaluation sets to its start each time.
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES, variable)
        made[name] = (metric.result(), tf.group(*metric.updates) if update is None else update)
    return made
