"""What the discretizers share: `adapt`, the boundaries as state, and the call on a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from twml_ops.layers._batch import SparseBatch, parse
from twml_ops.layers._quantiles import Boundaries, ExactQuantiles

_STATE = Boundaries._fields


class Discretizer(tf.keras.layers.Layer):
    """Base of the layers that put continuous features into buckets found by `adapt`.

    The state is three variables of whatever length `adapt` or a checkpoint gives them; a layer
    that was never adapted has no splits, not even the first.
    """

    def __init__(
        self,
        num_bins: int | Mapping[int, int],
        side: Literal["left", "right"] = "left",
        missing: Literal["bucket", "drop"] = "bucket",
        unknown: Literal["pass", "drop", "error"] = "pass",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        _check_choice("side", side, ("left", "right"))
        _check_choice("missing", missing, ("bucket", "drop"))
        _check_choice("unknown", unknown, ("pass", "drop", "error"))
        self.num_bins = _checked_bins(num_bins)
        self.side = side
        self.missing = missing
        self.unknown = unknown
        self.supports_jit = False  # the ops are no XLA ops
        self._output_dim: int | None = None  # of the layer this one was configured from
        # The ops run on the CPU: boundaries elsewhere would be copied to it at each call.
        with tf.init_scope(), tf.device("CPU:0"):
            self._feature_ids = self._state_variable("feature_ids", tf.int64)
            self._boundaries = self._state_variable("boundaries", tf.float32)
            self._splits = self._state_variable("splits", tf.int64)

    def _state_variable(self, name: str, dtype: tf.DType) -> tf.Variable:
        empty = tf.zeros([0], dtype)
        return tf.Variable(empty, trainable=False, shape=[None], dtype=dtype, name=name)

    @property
    def state_variables(self) -> list[tf.Variable]:
        """Feature ids [F], boundaries [total] and splits [F + 1], as `Boundaries` describes them.

        Keras 3 does not count them among a model's `variables`; a `tf.Module` that exports a
        function of the model without tracking the model must hold them too.
        """
        return [self._feature_ids, self._boundaries, self._splits]

    def adapt(self, data: Any) -> None:
        """Finds the boundaries; what an earlier `adapt` found is forgotten.

        A feature with no more distinct values than bins gets a bucket for each of them; otherwise
        the boundaries lie at the quantiles of its values, equal ones once. NaNs count for nothing,
        but a feature that had only NaNs is adapted too, with one bucket. Adapt before the layer is
        called in a model: the model's shapes depend on `output_dim`.

        Args:
            data: a `tf.data.Dataset` of batches in any batch form (without labels), or one batch;
                NumPy arrays will do for padded pairs.

        Raises:
            ValueError: the data is no batch form.
        """
        quantiles = ExactQuantiles()
        for batch in data if isinstance(data, tf.data.Dataset) else [data]:
            csr, _ = parse(tf.nest.map_structure(_to_tensor, batch))
            quantiles.update(csr.ids.numpy().astype(np.int64), csr.values_or_ones().numpy())
        self._assign(quantiles.boundaries(self.num_bins, self.side))

    def _assign(self, found: Boundaries) -> None:
        for variable, value in zip(self.state_variables, found, strict=True):
            variable.assign(value)

    @property
    def adapted(self) -> bool:
        """Whether there are boundaries: from `adapt`, or loaded."""
        return self._sizes() is not None

    def _sizes(self) -> tuple[int, int] | None:
        """(features, boundaries), or None if there are none or, in a graph, they cannot be read."""
        with tf.init_scope():  # out of the function that may be being traced
            if not tf.executing_eagerly():
                return None
            features, boundaries, splits = (
                int(tf.size(v.read_value())) for v in self.state_variables
            )
        return (features, boundaries) if splits > 0 else None

    @property
    def output_dim(self) -> int:
        """The size of the output's id space, exactly.

        Raises:
            ValueError: the layer was not adapted.
        """
        sizes = self._sizes()
        if sizes is not None:
            self._output_dim = self._id_space(*sizes)
        if self._output_dim is None:
            raise ValueError(
                f"{type(self).__name__} '{self.name}' is not adapted: call adapt(data)"
            )
        return self._output_dim

    def _id_space(self, features: int, boundaries: int) -> int:
        raise NotImplementedError

    def _discretize(self, batch: SparseBatch) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
        raise NotImplementedError

    def call(self, inputs: Any) -> Any:
        """Inputs: a batch of features in any form. Returns buckets in the same form."""
        output_dim = self.output_dim
        if tf.executing_eagerly() and not self.adapted:
            raise ValueError(
                f"{type(self).__name__} '{self.name}' is not adapted: call adapt(data)"
            )
        batch, rebuild = parse(inputs)
        ids, values, row_splits = self._discretize(batch)
        if self.missing != "drop" and self.unknown != "drop":
            row_splits = batch.row_splits  # nothing moves: spares the forms their rebuilding
        return rebuild(SparseBatch(ids, values, row_splits), output_dim)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, and the size of the output if the layer is adapted."""
        config = super().get_config()
        config.pop("autocast", None)
        num_bins: Any = self.num_bins
        if isinstance(num_bins, dict):  # JSON has no integer keys
            num_bins = [[feature, bins] for feature, bins in num_bins.items()]
        config |= {"num_bins": num_bins, "side": self.side}
        config |= {"missing": self.missing, "unknown": self.unknown}
        if self.adapted or self._output_dim is not None:
            config["adapted_output_dim"] = self.output_dim
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Discretizer:
        """A layer that can be built into a model, but needs boundaries, loaded or adapted, to run.

        Args:
            config: what `get_config` returned.
        """
        config = dict(config)
        output_dim = config.pop("adapted_output_dim", None)
        if isinstance(config["num_bins"], (list, tuple)):
            config["num_bins"] = dict(config["num_bins"])
        layer = cls(**config)
        layer._output_dim = output_dim
        return layer

    def save_own_variables(self, store: Any) -> None:
        """Writes the state to a `.keras` or `.weights.h5` file."""
        for name, variable in zip(_STATE, self.state_variables, strict=True):
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the state, of whatever size it is."""
        self._assign(Boundaries(*(np.array(store[name]) for name in _STATE)))


def _to_tensor(component: Any) -> Any:
    composite = isinstance(component, (tf.SparseTensor, tf.RaggedTensor))
    return component if composite else tf.convert_to_tensor(component)


def _check_choice(name: str, got: str, choices: tuple[str, ...]) -> None:
    if got not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {got!r}")


def _checked_bins(num_bins: Any) -> int | dict[int, int]:
    if isinstance(num_bins, Mapping):
        return {int(f): _checked_count(f"num_bins[{f}]", n) for f, n in num_bins.items()}
    return _checked_count("num_bins", num_bins)


def _checked_count(name: str, got: Any) -> int:
    if isinstance(got, bool) or not isinstance(got, (int, np.integer)) or got < 1:
        raise ValueError(f"{name} must be a positive integer, got {got!r}")
    return int(got)


def check_bits(name: str, got: Any) -> int:
    """`got`, if an id space can have 2^got ids."""
    if isinstance(got, bool) or not isinstance(got, (int, np.integer)) or not 1 <= got <= 62:
        raise ValueError(f"{name} must be an integer in [1, 62], got {got!r}")
    return int(got)
