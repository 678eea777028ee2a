"""A metric of the latest batches only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.metrics._streaming import Streaming


@serializable
class Windowed(Streaming):
    """Another metric, of the last `window` batches: what a long or drifting stream looks like now.

    Keeps the tally of each batch in a ring of the size `window` times that of the metric. A batch
    beyond the window leaves no trace, not even a rounding error. Keras resets it with all others
    at the start of an epoch. On several replicas each keeps its own batches, the last `window` of
    them, and they are added up. `merge_state` adds up windows, too.

    Args:
        metric: any other metric of this package that is not exact. What it has seen itself does
            not matter.
        window: how many batches to look back, default 100.
        name: default: `windowed_` and the name of `metric`.
        dtype: unused: the result is of the dtype that `metric` has.

    Raises:
        ValueError: `metric` cannot be windowed, or `window` is not positive.
    """

    def __init__(
        self, metric: Streaming, window: int = 100, name: str | None = None, dtype: Any = None
    ) -> None:
        if not isinstance(metric, Streaming) or isinstance(metric, Windowed):
            raise ValueError(
                "metric must be one of this package that keeps sums (as NormalizedEntropy or "
                f"ROCAUC does), got {type(metric).__name__}"
            )
        whole = isinstance(window, int) and not isinstance(window, bool)
        if not whole or window < 1:
            raise ValueError(f"window must be a positive integer, got {window!r}")
        super().__init__(
            (window, *metric.shape), name=name or f"windowed_{metric.name}", dtype=dtype
        )
        self.window = window
        self._next = self.add_weight(name="next", shape=(), initializer="zeros", dtype="int64")
        # Behind a function, so that Keras does not count its variables among this metric's.
        self._metric: Callable[[], Streaming] = lambda: metric

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, **kwargs: Any
    ) -> None:
        """Adds a batch and forgets the one that leaves the window.

        Args:
            y_true: as `metric` takes it.
            y_pred: as `metric` takes it.
            sample_weight: as `metric` takes it.
            **kwargs: what else `metric` takes, such as `segments`.
        """
        new = self._metric().batch_tally(y_true, y_pred, sample_weight, **kwargs)
        place = tf.convert_to_tensor(self._next)
        ring = tf.convert_to_tensor(self._tally)
        self._tally.assign(tf.tensor_scatter_nd_update(ring, [[place]], new[tf.newaxis]))
        self._next.assign((place + 1) % self.window)

    def result_of(self, tally: tf.Tensor) -> Any:
        """The metric of all batches in the window."""
        return self._metric().result_of(tf.reduce_sum(tally, axis=0))

    def reset_state(self) -> None:
        """Forgets everything seen."""
        super().reset_state()
        self._next.assign(tf.zeros([], tf.int64))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config: dict[str, Any] = super().get_config()
        inner = tf.keras.metrics.serialize(self._metric())
        return {**config, "metric": inner, "window": self.window}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Windowed:
        """The metric that `get_config` describes."""
        return cls(**{**config, "metric": tf.keras.metrics.deserialize(config["metric"])})
