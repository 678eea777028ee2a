"""`QuantileSketch`: streaming quantiles of many features, with the state in variables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.ops._library import library


class SketchState(NamedTuple):
    """The state of a sketch as plain tensors; cc/core/quantile_sketch.h describes their contents.

    `core.QuantileSketch.state()` returns the same arrays under the same names.

    Attributes:
        config: float64 [4].
        feature_ids: int64 [F], the features seen, ascending.
        totals: float64 [F, 7]; the first two columns are the weights of values and of NaNs.
        counters: int64 [F, 4].
        runs: int32 [R, 2].
        items: float32 [I].
    """

    config: tf.Tensor
    feature_ids: tf.Tensor
    totals: tf.Tensor
    counters: tf.Tensor
    runs: tf.Tensor
    items: tf.Tensor


STATE_SPECS = {
    "config": (tf.float64, [4]),
    "feature_ids": (tf.int64, [None]),
    "totals": (tf.float64, [None, 7]),
    "counters": (tf.int64, [None, 4]),
    "runs": (tf.int32, [None, 2]),
    "items": (tf.float32, [None]),
}


def empty_sketch(
    epsilon: float = 1e-3, exact_values: int = 256, weighted: bool = False
) -> SketchState:
    """The state of an empty sketch (KLL: Karnin, Lang and Liberty 2016, "Optimal Quantile
    Approximation in Streams").

    Args:
        epsilon: Bound of the rank error, as a share of the feature's total weight, that holds with
            a probability of at least 99 %; in [1e-5, 0.5]. A feature with many values takes about
            10 / epsilon numbers.
        exact_values: A feature with at most this many distinct values is kept exactly.
        weighted: Whether updates may have weights.

    Returns:
        The state.
    """
    shapes = {name: [0 if d is None else d for d in shape] for name, (_, shape) in _specs()}
    empty = {name: tf.zeros(shapes[name], dtype) for name, (dtype, _) in _specs()}
    empty["config"] = tf.constant([1, epsilon, exact_values, weighted], tf.float64)
    return SketchState(**empty)


def sketch_update(state: SketchState, ids: Any, values: Any, weights: Any = None) -> SketchState:
    """Adds values to a sketch.

    The cost is O(state + K), so batches should be large; `core.QuantileSketch` has no such cost.

    Args:
        state: From `empty_sketch` or another update.
        ids: Integer [K], feature ids; any int64.
        values: float32 [K]. A NaN counts as missing.
        weights: None (all 1), or float32 [K] in [0, 2^31].

    Returns:
        The new state. It is the same however a stream is cut into batches.

    Raises:
        tf.errors.InvalidArgumentError: Lengths differ, a weight is out of range, the sketch is not
            weighted, or the state is invalid.
    """
    return SketchState(
        *library.twml_quantile_sketch_update(
            *state,
            tf.cast(ids, tf.int64),
            tf.convert_to_tensor(values, tf.float32),
            tf.zeros([0]) if weights is None else tf.convert_to_tensor(weights, tf.float32),
            has_weights=weights is not None,
        )
    )


def sketch_merge(state: SketchState, other: SketchState) -> SketchState:
    """Merges two sketches.

    Args:
        state: State of a sketch.
        other: State of another sketch with the same options.

    Returns:
        The state of a sketch of both streams.

    Raises:
        tf.errors.InvalidArgumentError: The sketches differ in epsilon, exact_values or weighted.
    """
    return SketchState(*library.twml_quantile_sketch_merge(*state, *other))


def sketch_quantiles(state: SketchState, feature_ids: Any, probabilities: Any) -> tf.Tensor:
    """Quantiles: the smallest value whose rank is at least the given share of the feature's weight.

    Args:
        state: State of a sketch.
        feature_ids: Integer [Q].
        probabilities: Float [P], each in [0, 1].

    Returns:
        float32 [Q, P]; NaN for a feature without values.

    Raises:
        tf.errors.InvalidArgumentError: A probability is out of range.
    """
    return library.twml_quantile_sketch_quantiles(
        *state, tf.cast(feature_ids, tf.int64), tf.cast(probabilities, tf.float64)
    )


class QuantileSketch(tf.Module):
    """A sketch in variables, for use in graphs. Checkpoints and SavedModels contain it.

    Args:
        epsilon: Bound of the rank error; see `empty_sketch`.
        exact_values: A feature with at most this many distinct values is kept exactly.
        weighted: Whether updates may have weights.
        name: Name of the module.
    """

    def __init__(
        self,
        epsilon: float = 1e-3,
        exact_values: int = 256,
        weighted: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        empty = empty_sketch(epsilon, exact_values, weighted)
        with tf.device("CPU:0"):
            self._state = sketch_variables(empty)

    @property
    def state(self) -> SketchState:
        """The current state."""
        return SketchState(*(v.read_value() for v in self._state))

    def assign(self, state: SketchState) -> None:
        """Replaces the state.

        Args:
            state: The new state, of tensors or arrays.
        """
        for variable, value in zip(self._state, state, strict=True):
            variable.assign(value)

    def update(self, ids: Any, values: Any, weights: Any = None) -> None:
        """Adds values, as `sketch_update`.

        Args:
            ids: Integer [K], feature ids; any int64.
            values: float32 [K]. A NaN counts as missing.
            weights: None (all 1), or float32 [K] in [0, 2^31].
        """
        self.assign(sketch_update(self.state, ids, values, weights))

    def merge(self, other: QuantileSketch) -> None:
        """Adds the values that another sketch has seen, as `sketch_merge`.

        Args:
            other: A sketch with the same options.
        """
        self.assign(sketch_merge(self.state, other.state))

    def quantiles(self, feature_ids: Any, probabilities: Any) -> tf.Tensor:
        """Quantiles, as `sketch_quantiles`.

        Args:
            feature_ids: Integer [Q].
            probabilities: Float [P], each in [0, 1].

        Returns:
            float32 [Q, P]; NaN for a feature without values.
        """
        return sketch_quantiles(self.state, feature_ids, probabilities)

    def to_core(self) -> Any:
        """Converts the sketch to a `core.QuantileSketch`; only outside of graphs.

        Returns:
            A `core.QuantileSketch` with the same state.
        """
        from twml_ops import core

        state = {name: np.asarray(v) for name, v in self.state._asdict().items()}
        return core.QuantileSketch.from_state(state)


def sketch_variables(state: SketchState) -> list[tf.Variable]:
    """Variables that can hold any state, initialized with `state`."""
    return [
        tf.Variable(value, trainable=False, shape=shape, dtype=dtype, name=f"sketch_{name}")
        for (name, (dtype, shape)), value in zip(_specs(), state, strict=True)
    ]


def _specs() -> Any:
    return STATE_SPECS.items()


for _op in ("Update", "Merge", "Quantiles"):
    tf.no_gradient(f"Twml>QuantileSketch{_op}")
