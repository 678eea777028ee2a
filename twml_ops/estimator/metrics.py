"""Keras metrics as `eval_metric_ops`."""

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
    """The `eval_metric_ops` of Keras metrics.

    Args:
        metrics: Keras metrics, or name → metric. They must be created in the current graph.
        labels: tensor, as the metrics take it.
        predictions: tensor, as the metrics take it.
        weights: the weights of the examples, or None.

    Returns:
        Name → (value, update op).
    """
    items: Any = metrics
    named = items.items() if isinstance(items, Mapping) else [(m.name, m) for m in items]
    result = {}
    for name, metric in named:
        update = metric.update_state(labels, predictions, sample_weight=weights)
        for variable in metric.variables:
            # Estimators initialize local variables at the start of each evaluation.
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES, variable)
        result[name] = (metric.result(), tf.group(*metric.updates) if update is None else update)
    return result
