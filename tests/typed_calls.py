"""Calls that a type checker accepts or refuses. mypy in `make lint` is the test; nothing runs them.

A comment that ignores an error is an error itself where there is none.
"""

from typing import Any

import twml_ops
from twml_ops import layers, models, optimizers
from twml_ops.data import Schema


def accepted(schema: Schema, dataset: Any) -> None:
    """Arguments and their choices are known, by both ways to name a layer."""
    layers.SparseLinear(16, 1000, kernel_dtype="bfloat16", out_of_range="wrap")
    layers.FieldEmbedding([10, 20], 4, bag_combiner="sum", num_bags=1)
    twml_ops.layers.DynamicSparseLinear(16, capacity=1000, eviction="lfu")
    optimizers.LazyAdam(0.01, clipnorm=1.0)
    models.dcn(schema, dataset, num_crosses=3, units=4, field_units=["auto"], dropout=0.1)


def refused(schema: Schema, dataset: Any) -> None:
    """What is missing, misspelled or no choice."""
    layers.SparseLinear(16)  # type: ignore[call-arg]
    twml_ops.layers.SparseLinear(16)  # type: ignore[call-arg]
    layers.FieldEmbedding(10, 4, bag_combiner="max")  # type: ignore[arg-type]
    optimizers.LazyAdam(0.01, clip_norm=1.0)  # type: ignore[call-arg]
    models.logistic(schema, dataset, units=4)  # type: ignore[call-arg]
    models.fm(schema, dataset, units="4")  # type: ignore[arg-type]
