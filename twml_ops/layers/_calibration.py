"""The base of the calibration layers: checks of the data to fit, state of any size, the call."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.layers._resizable_state import ResizableState

Floats = npt.NDArray[np.float64]


class Column(NamedTuple):
    """The examples that one unit is fitted on, float64 [n] each, without NaN and weights of 0.

    Attributes:
        scores: Finite.
        labels: In [0, 1].
        weights: Positive.
    """

    scores: Floats
    labels: Floats
    weights: Floats

    @property
    def base_rate(self) -> float:
        """The weighted mean label."""
        return float(np.average(self.labels, weights=self.weights))


class Calibration(ResizableState, tf.keras.layers.Layer):
    """Base of the layers that map scores to probabilities, each unit (column) by its own curve.

    The state is in variables whose size `adapt` or a checkpoint determines; they are empty before.
    The last of the `state_variables` is the base rate of each unit, float32 [units].
    """

    sizing_argument: ClassVar[str] = "units"
    state_ranks: ClassVar[tuple[int, ...]]

    def __init__(
        self, units: int = 1, nan: Literal["propagate", "base_rate"] = "propagate", **kwargs: Any
    ) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "float32")  # also under mixed precision
        super().__init__(**kwargs)
        if isinstance(units, bool) or not isinstance(units, (int, np.integer)) or units < 1:
            raise ValueError(f"units must be a positive integer, got {units!r}")
        if nan not in ("propagate", "base_rate"):
            raise ValueError(f"nan must be 'propagate' or 'base_rate', got {nan!r}")
        self.units = int(units)
        self.nan = nan
        with tf.init_scope():
            for name, rank in zip(self.state_names, self.state_ranks, strict=True):
                empty, shape = tf.zeros([0] * rank), [None] * rank
                variable = tf.Variable(empty, trainable=False, shape=shape, name=name)
                setattr(self, f"_{name}", variable)  # checkpoints of Keras 3 ignore lists

    @property
    def adapted(self) -> bool:
        """Whether the layer has a state, from `adapt` or loaded."""
        return self._has_state

    def adapt(self, scores: Any, labels: Any, sample_weight: Any = None) -> None:
        """Fits the curve of each unit, replacing earlier ones.

        Use data that the model was not trained on. Examples whose score is NaN or whose weight is 0
        are ignored.

        Args:
            scores: Float [n] or [n, units]: inputs of the layer.
            labels: Float in [0, 1], of the shape of the scores.
            sample_weight: Float, not negative, [n] or of the shape of the scores; default 1.

        Raises:
            ValueError: Shapes differ, a score is infinite, a label or a weight is out of range, or
                a unit has no examples. The state is unchanged then.
        """
        columns = _columns(scores, labels, sample_weight, self.units)
        fitted = self._fit(columns)
        rates = np.array([column.base_rate for column in columns], np.float32)
        self._assign([*fitted, rates])

    def _fit(self, columns: list[Column]) -> list[npt.NDArray[np.float32]]:
        """Computes the state without the base rates."""
        raise NotImplementedError

    def _curves(self, scores: tf.Tensor) -> tf.Tensor:
        """Maps scores [units, B] without NaN to probabilities."""
        raise NotImplementedError

    def _assign(self, values: list[npt.NDArray[np.float32]]) -> None:
        for variable, value in zip(self.state_variables, values, strict=True):
            variable.assign(value)

    def call(self, inputs: Any) -> tf.Tensor:
        """Calibrates scores.

        Args:
            inputs: Scores, float [B] or [B, 1] for one unit, else [..., units].

        Returns:
            Probabilities of the same shape, float32. A NaN score gives NaN, or with
            `nan="base_rate"` the mean label of the data that the layer was adapted to.

        Raises:
            ValueError: The shape is wrong, or the layer has not been adapted.
        """
        scores = tf.cast(tf.convert_to_tensor(inputs), tf.float32)
        self._check_shape(scores.shape)
        unadapted = (
            f"{type(self).__name__} '{self.name}' is not adapted: call adapt(scores, labels)"
        )
        if tf.executing_eagerly() and not self.adapted:
            raise ValueError(unadapted)
        rates = self.state_variables[-1].read_value()
        with tf.control_dependencies([tf.debugging.assert_positive(tf.size(rates), unadapted)]):
            columns = tf.transpose(tf.reshape(scores, [-1, self.units]))
        nan = tf.math.is_nan(columns)
        calibrated = self._curves(tf.where(nan, tf.zeros_like(columns), columns))
        replacement = rates[:, tf.newaxis] if self.nan == "base_rate" else columns
        calibrated = tf.where(nan, replacement, calibrated)
        return tf.reshape(tf.transpose(calibrated), tf.shape(scores))

    def _check_shape(self, shape: tf.TensorShape) -> None:
        is_vector = self.units == 1 and shape.rank == 1
        if not is_vector and (not shape.rank or shape[-1] != self.units or shape.rank < 2):
            expected = "[B] or [B, 1]" if self.units == 1 else f"[..., {self.units}]"
            raise ValueError(f"inputs must have the shape {expected}, got {shape}")

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {**config, **self._reference(), "nan": self.nan}


def _columns(scores: Any, labels: Any, sample_weight: Any, units: int) -> list[Column]:
    s, y = (np.asarray(x, np.float64) for x in (scores, labels))
    w = np.ones_like(s) if sample_weight is None else np.asarray(sample_weight, np.float64)
    if s.shape not in {(len(s),), (len(s), units)} or (s.ndim == 1 and units > 1):
        expected = "[n] or [n, 1]" if units == 1 else f"[n, {units}]"
        raise ValueError(f"scores must have the shape {expected}, got {s.shape}")
    matrix = (len(s), units)
    if y.size != s.size or len(y) != len(s):
        raise ValueError(f"labels must have the shape of the scores, {s.shape}, got {y.shape}")
    if w.shape == (len(s),):
        w = np.broadcast_to(w[:, np.newaxis], matrix)
    if w.size != s.size or len(w) != len(s):
        raise ValueError(f"sample_weight must have the shape {s.shape}, got {w.shape}")
    s, y, w = (x.reshape(matrix) for x in (s, y, w))
    _check("scores", s, ~np.isinf(s), "must not be infinite")
    _check("labels", y, (y >= 0) & (y <= 1), "must be in [0, 1]")
    _check("sample_weight", w, (w >= 0) & np.isfinite(w), "must be finite and not negative")
    columns = []
    for unit in range(units):
        kept = (w[:, unit] > 0) & ~np.isnan(s[:, unit])
        if not kept.any():
            raise ValueError(f"scores[:, {unit}] must have an example to fit on, got none")
        columns.append(Column(*(x[kept, unit] for x in (s, y, w))))
    return columns


def _check(name: str, values: Floats, good: npt.NDArray[np.bool_], expected: str) -> None:
    if not good.all():
        row, column = np.argwhere(~good)[0]
        raise ValueError(f"{name}[{row}, {column}] = {values[row, column]} {expected}")
