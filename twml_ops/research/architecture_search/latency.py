"""Measured times of parts of networks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.layers import FieldEmbedding
from twml_ops.research.architecture_search.choice import Choice

BATCH_SIZE = 256
"""Examples of the batches that are timed."""
_CALLS = 20


def choice_latency(choice: Choice, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Times the candidates of a choice.

    Args:
        choice: The choice.
        shape: Of its input, without B.

    Returns:
        [K], milliseconds of `BATCH_SIZE` examples in inference; 0 for a part that is left out.
    """
    times = []
    for candidate in choice.candidates:
        inputs = tf.keras.Input(tuple(shape))
        output = choice.chosen(inputs, candidate, choice.name)
        if output is None or output is inputs:
            times.append(0.0)
            continue
        model = tf.keras.Model(inputs, output)
        times.append(_milliseconds(model, tf.random.normal((BATCH_SIZE, *shape))))
    return np.array(times)


def width_latency(
    widths: Sequence[int], num_rows: Sequence[int], units: int
) -> npt.NDArray[np.float64]:
    """Times lookups of all fields.

    Args:
        widths: Of the vectors, the same for all fields.
        num_rows: Rows of each field.
        units: To which vectors are projected.

    Returns:
        [len(widths)], milliseconds of `BATCH_SIZE` examples.
    """
    ids = np.random.default_rng(0).integers(0, num_rows, (BATCH_SIZE, len(num_rows)))
    layers = [
        FieldEmbedding(num_rows, width, projected_units=units, out_of_range="wrap")
        for width in widths
    ]
    return np.array([_milliseconds(layer, tf.constant(ids)) for layer in layers])


def _milliseconds(function: Callable[[Any], Any], inputs: Any) -> float:
    """The median time of some calls."""
    traced = tf.function(function, autograph=False)
    times = []
    for _ in range(1 + _CALLS):
        start = time.perf_counter()
        np.asarray(traced(inputs))
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[1:])
