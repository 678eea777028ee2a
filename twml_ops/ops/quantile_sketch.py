"""`QuantileSketch`: streaming quantiles of many features, its state in tf.Variables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.ops._library import library


class SketchState(NamedTuple):
    """The plain tensors that are a sketch; cc/core/quantile_sketch.h says what is in them.

    `core.QuantileSketch.state()` gives the same arrays under the same names.

    Attributes:
        config: float64 [4].
        feature_ids: int64 [F], the features seen, ascending.
        totals: float64 [F, 7]; the first two columns are the weight of values and of NaNs.
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
    """The state of a sketch that has seen nothing.

    Args:
        epsilon: a rank is wrong by more than this share of its feature's weight with a probability
            of at most 1 %; in [1e-5, 0.5]. About 10 / epsilon numbers are held for a feature with
            many values.
        exact_values: a feature with at most so many distinct values is kept exactly.
        weighted: whether updates may have weights.
    """
    shapes = {name: [0 if d is None else d for d in shape] for name, (_, shape) in _specs()}
    empty = {name: tf.zeros(shapes[name], dtype) for name, (dtype, _) in _specs()}
    empty["config"] = tf.constant([1, epsilon, exact_values, weighted], tf.float64)
    return SketchState(**empty)


def sketch_update(state: SketchState, ids: Any, values: Any, weights: Any = None) -> SketchState:
    """Takes in values. Costs O(state + K): give it large batches, or use `core.QuantileSketch`.

    Args:
        state: from `empty_sketch` or another update.
        ids: integer [K], features: any int64.
        values: float32 [K]; a NaN counts as missing.
        weights: None, all 1, or float32 [K] in [0, 2^31].

    Returns:
        The new state. The same stream gives the same state, however it is cut into batches.

    Raises:
        tf.errors.InvalidArgumentError: lengths that differ, a weight out of range, weights for a
            sketch that is not weighted, or a state that is none.
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
    """The state of a sketch that has seen what both have seen.

    Raises:
        tf.errors.InvalidArgumentError: they differ in epsilon, exact_values or weighted.
    """
    return SketchState(*library.twml_quantile_sketch_merge(*state, *other))


def sketch_quantiles(state: SketchState, feature_ids: Any, probabilities: Any) -> tf.Tensor:
    """Quantiles: the least value whose rank is at least that share of the feature's weight.

    Args:
        state: of a sketch.
        feature_ids: integer [Q].
        probabilities: [P], each in [0, 1].

    Returns:
        float32 [Q, P]; NaN for a feature without values.

    Raises:
        tf.errors.InvalidArgumentError: a probability out of range.
    """
    return library.twml_quantile_sketch_quantiles(
        *state, tf.cast(feature_ids, tf.int64), tf.cast(probabilities, tf.float64)
    )


class QuantileSketch(tf.Module):
    """A sketch in variables, for use in graphs; checkpoints and SavedModels keep it.

    Args:
        epsilon: as of `empty_sketch`, like the following.
        exact_values: so many distinct values of a feature are kept exactly.
        weighted: whether updates may have weights.
        name: of the module.
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
        """The state now."""
        return SketchState(*(v.read_value() for v in self._state))

    def assign(self, state: SketchState) -> None:
        """Makes this the sketch with that state, of tensors or arrays."""
        for variable, value in zip(self._state, state, strict=True):
            variable.assign(value)

    def update(self, ids: Any, values: Any, weights: Any = None) -> None:
        """Takes in values, as `sketch_update`."""
        self.assign(sketch_update(self.state, ids, values, weights))

    def merge(self, other: QuantileSketch) -> None:
        """Takes in what another sketch has seen, as `sketch_merge`."""
        self.assign(sketch_merge(self.state, other.state))

    def quantiles(self, feature_ids: Any, probabilities: Any) -> tf.Tensor:
        """Quantiles, as `sketch_quantiles`."""
        return sketch_quantiles(self.state, feature_ids, probabilities)

    def to_core(self) -> Any:
        """The same sketch as a `core.QuantileSketch`, outside of graphs."""
        from twml_ops import core

        state = {name: np.asarray(v) for name, v in self.state._asdict().items()}
        return core.QuantileSketch.from_state(state)


def sketch_variables(state: SketchState) -> list[tf.Variable]:
    """Variables that can hold any state, with this one in them."""
    return [
        tf.Variable(value, trainable=False, shape=shape, dtype=dtype, name=f"sketch_{name}")
        for (name, (dtype, shape)), value in zip(_specs(), state, strict=True)
    ]


def _specs() -> Any:
    return STATE_SPECS.items()


for _op in ("Update", "Merge", "Quantiles"):
    tf.no_gradient(f"Twml>QuantileSketch{_op}")
