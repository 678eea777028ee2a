"""A metric of the latest batches only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops._keras import assign_slot, serializable
from twml_ops.metrics._streaming import Streaming


@serializable
class Windowed(Streaming):
    """Another metric, computed over the last `window` batches of a long or drifting stream.

    The state is a ring buffer with the tally of each batch, `window` times the size of the metric's
    tally. Batches outside of the window have no effect on the result, not even through rounding.
    Keras resets the metric at the start of an epoch. Under a distribution strategy each replica
    keeps its own last `window` batches, and their tallies are added; `merge_state` adds windows in
    the same way.

    Args:
        metric: Any other metric of this package that is not exact. Its own state is not used.
        window: Number of batches.
        name: Name; None: `windowed_` and the name of `metric`.
        dtype: Not used: the result has the dtype of `metric`.

    Raises:
        ValueError: `metric` cannot be windowed, or `window` is not positive.
    """

    def __init__(
        self, metric: Streaming, window: int = 100, name: str | None = None, dtype: Any = None
    ) -> None:
        if not isinstance(metric, Streaming) or isinstance(metric, Windowed):
            raise ValueError(
                "metric must be a metric of this package with a tally (as NormalizedEntropy or "
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
        # In a function, so that Keras does not track the metric's variables as this one's.
        self._metric: Callable[[], Streaming] = lambda: metric

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, **kwargs: Any
    ) -> None:
        """Adds a batch and removes the one that leaves the window.

        Args:
            y_true: As for `metric`.
            y_pred: As for `metric`.
            sample_weight: As for `metric`.
            **kwargs: Further arguments of `metric`, such as `segments`.
        """
        new = self._metric().batch_tally(y_true, y_pred, sample_weight, **kwargs)
        position = tf.convert_to_tensor(self._next)
        assign_slot(self._tally, position, new)
        self._next.assign((position + 1) % self.window)

    def result_of(self, tally: tf.Tensor) -> Any:
        """The metric of all batches in the window."""
        return self._metric().result_of(tf.reduce_sum(tally, axis=0))

    def reset_state(self) -> None:
        """Removes all batches."""
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
