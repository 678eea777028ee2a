"""The base of the discretizers: `adapt`, the boundaries as state, and the call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from twml_ops import core
from twml_ops._batch import SparseBatch, parse
from twml_ops._keras import is_of_symbolic_build
from twml_ops.layers._adapt import Checkpoint, EntryReader, Progress, count_batches
from twml_ops.layers._arguments import check_choice, check_num_bins
from twml_ops.layers._resizable_state import StateReference
from twml_ops.ops._library import library
from twml_ops.ops.quantile_sketch import SketchState, empty_sketch, sketch_variables
from twml_ops.placement.device import StatePlacement, check_state_placement, state_placement

# Features with at most this many distinct values are adapted exactly, whatever their length.
_EXACT_VALUES = 1024


class Boundaries(NamedTuple):
    """Ragged boundaries: feature f has the items splits[f] to splits[f + 1] - 1.

    Attributes:
        feature_ids: int64 [F], strictly ascending.
        boundaries: float32 [splits[F]], strictly ascending within each feature.
        splits: int64 [F + 1].
    """

    feature_ids: NDArray[np.int64]
    boundaries: NDArray[np.float32]
    splits: NDArray[np.int64]


_STATE = Boundaries._fields


class Discretizer(tf.keras.layers.Layer):
    """Base of the layers that put continuous features into buckets found by `adapt`.

    The state is three variables whose length `adapt` or a checkpoint determines. In a layer that
    has not been adapted, `splits` is empty.
    """

    def __init__(
        self,
        num_bins: int | Mapping[int, int],
        side: Literal["left", "right"] = "left",
        missing: Literal["bucket", "drop"] = "bucket",
        unknown: Literal["pass", "drop", "error"] = "pass",
        epsilon: float = 1e-3,
        keep_sketch: bool = False,
        keep_inputs: bool = False,
        placement: StatePlacement = "auto",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        check_choice("side", side, ("left", "right"))
        check_choice("missing", missing, ("bucket", "drop"))
        check_choice("unknown", unknown, ("pass", "drop", "error"))
        self.num_bins = check_num_bins(num_bins)
        self.side = side
        self.missing = missing
        self.unknown = unknown
        self.epsilon = float(epsilon)
        self.keep_sketch = bool(keep_sketch)
        self.keep_inputs = bool(keep_inputs)
        self.placement = check_state_placement(placement)
        self._sketch = self.new_sketch()
        self.supports_jit = False  # the ops cannot be compiled by XLA
        self._output_dim: int | None = None  # from the config
        # The ops run where the boundaries are.
        with tf.init_scope(), tf.device(state_placement(placement).device or "CPU:0"):
            self._feature_ids = self._state_variable("feature_ids", tf.int64)
            self._boundaries = self._state_variable("boundaries", tf.float32)
            self._splits = self._state_variable("splits", tf.int64)
        if keep_sketch:  # one attribute each: checkpoints of Keras 3 ignore lists
            with tf.init_scope(), tf.device("CPU:0"):
                for variable in sketch_variables(empty_sketch()):
                    setattr(self, "_" + variable.name.split(":")[0], variable)

    def _state_variable(self, name: str, dtype: tf.DType) -> tf.Variable:
        empty = tf.zeros([0], dtype)
        return tf.Variable(empty, trainable=False, shape=[None], dtype=dtype, name=name)

    @property
    def state_variables(self) -> list[tf.Variable]:
        """Feature ids [F], boundaries [total] and splits [F + 1], as described by `Boundaries`.

        Keras 3 does not include them in a model's `variables`. A `tf.Module` that exports a
        function of the model without tracking the model must hold them as well.
        """
        return [self._feature_ids, self._boundaries, self._splits]

    def new_sketch(self, weighted: bool = False) -> core.QuantileSketch:
        """An empty sketch with the options that `adapt` uses; see `adapt_from_sketch`.

        Args:
            weighted: Whether its updates may have weights.

        Returns:
            The sketch.
        """
        bins = self.num_bins.values() if isinstance(self.num_bins, dict) else [self.num_bins]
        exact = max([_EXACT_VALUES, *bins])
        return core.QuantileSketch(self.epsilon, exact_values=exact, weighted=weighted)

    @property
    def sketch(self) -> core.QuantileSketch:
        """The sketch of the data that `adapt` has read.

        It is empty before `adapt`, and after loading unless `keep_sketch` is set.
        """
        if self.sketch_variables and not len(self._sketch.feature_ids):
            state = (v.numpy() for v in self.sketch_variables)
            named = dict(zip(SketchState._fields, state, strict=True))
            if len(named["feature_ids"]):
                self._sketch = core.QuantileSketch.from_state(named)
        return self._sketch

    @property
    def sketch_variables(self) -> list[tf.Variable]:
        """The variables of `sketch` as `ops.SketchState` orders them; none unless `keep_sketch`."""
        if not self.keep_sketch:
            return []
        return [getattr(self, f"_sketch_{name}") for name in SketchState._fields]

    def adapt(
        self,
        data: Any,
        *,
        weighted: bool = False,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = 60.0,
        progress: bool | None = None,
    ) -> None:
        """Computes the boundaries in one pass over the data, replacing earlier ones.

        The data is not held in memory: each feature goes into a sketch (`core.QuantileSketch`) of
        at most about 10 / epsilon numbers. A feature with at most as many distinct values as bins
        gets a bucket for each of them, exactly. Otherwise the boundaries are quantiles of its
        values, without duplicates, with a rank error of at most epsilon; they are exact for
        features with fewer than about 2 / epsilon values or 1,024 distinct ones. NaNs are ignored,
        but a feature that has only NaNs is adapted too, with one bucket. Adapt the layer before it
        is called in a model, whose shapes depend on `output_dim`.

        Args:
            data: A `tf.data.Dataset` of batches in any batch form (without labels), or one batch.
                Padded pairs may be NumPy arrays.
            weighted: Whether the elements are (batch, weights [B]), with one weight in [0, 2^31]
                for each row.
            checkpoint_dir: Folder where the sketch is written periodically. After the process was
                killed, the same call on the same data resumes from there. The file is deleted after
                success.
            checkpoint_seconds: Seconds between two writes.
            progress: Whether a line on stderr shows the progress once it takes more than two
                seconds. None: if stderr is a terminal.

        Raises:
            ValueError: The data has no batch form, or `checkpoint_dir` has the checkpoint of
                another call.
        """
        sketch = self.new_sketch(weighted)
        about = {"num_bins": repr(self.num_bins), "epsilon": self.epsilon, "weighted": weighted}
        checkpoint = Checkpoint(checkpoint_dir, checkpoint_seconds, about)
        position = 0
        if (found := checkpoint.load()) is not None:
            (sketch,), position = found
        progress_line = Progress(progress, count_batches(data))
        for ids, values, weights in EntryReader(data, int(weighted), position):
            self._update(sketch, ids, values, *weights)
            position += 1
            progress_line.add(len(ids), position)
            checkpoint.save([sketch], position)
        progress_line.done()
        self.adapt_from_sketch(sketch)
        checkpoint.done()

    def _update(self, sketch: core.QuantileSketch, ids: Any, values: Any, *weights: Any) -> None:
        if isinstance(self.num_bins, dict):
            selected = np.isin(ids, np.fromiter(self.num_bins, np.int64))
            ids, values, *rest = (a[selected] for a in (ids, values, *weights))
            weights = tuple(rest)
        sketch.update(ids, values, *weights)

    def adapt_from_sketch(self, *sketches: Any) -> None:
        """Computes the boundaries from sketches, such as one of each process that read data.

        Args:
            *sketches: `core.QuantileSketch` or `ops.QuantileSketch` with equal options, made by
                `new_sketch`. They are merged in the order given, into a new sketch.

        Raises:
            ValueError: There are no sketches, or their options differ.
        """
        if not sketches:
            raise ValueError("expected at least one sketch, got none")
        core_sketches = [s if isinstance(s, core.QuantileSketch) else s.to_core() for s in sketches]
        merged = core_sketches[0]
        if len(core_sketches) > 1:
            merged = core.QuantileSketch(
                merged.epsilon, exact_values=merged.exact_values, weighted=merged.weighted
            )
            for sketch in core_sketches:
                merged.merge(sketch)
        features = merged.feature_ids
        if isinstance(self.num_bins, dict):
            features = features[np.isin(features, np.fromiter(self.num_bins, np.int64))]
            bins = np.array([self.num_bins[int(f)] for f in features], np.int64)
        else:
            bins = np.full(len(features), self.num_bins, np.int64)
        self._assign(Boundaries(features, *merged.boundaries(features, bins, self.side)))
        self._sketch = merged
        if self.sketch_variables:
            state = merged.state()
            for name, variable in zip(SketchState._fields, self.sketch_variables, strict=True):
                variable.assign(state[name])

    @property
    def boundaries(self) -> dict[int, NDArray[np.float32]]:
        """The current boundaries by feature, both ascending; empty before `adapt`."""
        ids, boundaries, splits = (v.numpy() for v in self.state_variables)
        return {int(f): boundaries[splits[i] : splits[i + 1]] for i, f in enumerate(ids)}

    def set_boundaries(self, boundaries: Mapping[int, ArrayLike]) -> None:
        """Replaces the boundaries, for example by hand-chosen ones or the boundaries of another
        layer.

        `sketch` does not change. Call it before the layer is called in a model.

        Args:
            boundaries: Feature id → float32 boundaries, strictly ascending; an empty list is one
                bucket. To change some features only: `{**layer.boundaries, feature: [...]}`.

        Raises:
            ValueError: The boundaries of a feature are not strictly ascending, or contain NaN.
        """
        features = np.array(sorted(boundaries), np.int64)
        by_feature = [np.ravel(np.asarray(boundaries[f], np.float32)) for f in features.tolist()]
        for feature, given in zip(features, by_feature, strict=True):
            if np.isnan(given).any() or not np.all(given[1:] > given[:-1]):
                raise ValueError(
                    f"boundaries[{feature}] must be strictly ascending as float32, got {given}"
                )
        splits = np.cumsum([0, *map(len, by_feature)], dtype=np.int64)
        flat = np.concatenate([np.zeros(0, np.float32), *by_feature])
        self._assign(Boundaries(features, flat, splits))

    def _assign(self, found: Boundaries) -> None:
        for variable, value in zip(self.state_variables, found, strict=True):
            variable.assign(value)

    @property
    def adapted(self) -> bool:
        """Whether the layer has boundaries, from `adapt` or loaded."""
        return self._sizes() is not None

    def _sizes(self) -> tuple[int, int] | None:
        """Numbers of features and boundaries; None if there are none or they cannot be read."""
        with tf.init_scope():  # outside of a function that is being traced
            if not tf.executing_eagerly():
                return None
            features, boundaries, splits = (
                int(tf.size(v.read_value())) for v in self.state_variables
            )
        return (features, boundaries) if splits > 0 else None

    @property
    def output_dim(self) -> int:
        """The exact size of the output's id space.

        Raises:
            ValueError: The layer has not been adapted.
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
        """Discretizes a batch.

        Args:
            inputs: A batch of (feature, value) entries in any batch form, B rows.

        Returns:
            The buckets, a batch in the same form.

        Raises:
            ValueError: The layer has not been adapted, or `inputs` has no batch form.
        """
        first = inputs[0] if isinstance(inputs, (tuple, list)) else inputs
        not_loaded = is_of_symbolic_build(first) and not self.adapted
        output_dim = 1 if not_loaded else self.output_dim
        if tf.executing_eagerly() and not self.adapted:
            raise ValueError(
                f"{type(self).__name__} '{self.name}' is not adapted: call adapt(data)"
            )
        with library.on_host():
            batch, rebuild = parse(inputs)
            ids, values, row_splits = self._discretize(batch)
            if self.missing != "drop" and self.unknown != "drop" and not self.keep_inputs:
                row_splits = (
                    batch.row_splits
                )  # no entry is moved, so `rebuild` can reuse the structure
            return rebuild(SparseBatch(ids, values, row_splits), output_dim)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, and the output size if the layer is adapted."""
        config = super().get_config()
        config.pop("autocast", None)
        num_bins: Any = self.num_bins
        if isinstance(num_bins, dict):  # JSON has no integer keys
            num_bins = [[feature, bins] for feature, bins in num_bins.items()]
        config |= {"num_bins": num_bins, "side": self.side}
        config |= {"missing": self.missing, "unknown": self.unknown}
        config |= {"epsilon": self.epsilon, "keep_sketch": self.keep_sketch}
        config |= {"keep_inputs": self.keep_inputs, "placement": self.placement}
        if self.adapted or self._output_dim is not None:
            config["adapted_output_dim"] = StateReference(self.output_dim, self)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Discretizer:
        """Creates a layer from its config.

        A config from the same process also copies the boundaries of the original layer, so that
        clones of a model are adapted as well. With a config from a file the layer can be built into
        a model, but needs boundaries, loaded or adapted, before it runs.

        Args:
            config: What `get_config` returned.

        Returns:
            The layer.
        """
        config = dict(config)
        output_dim = config.pop("adapted_output_dim", None)
        if isinstance(config.get("num_bins"), (list, tuple)):
            config["num_bins"] = dict(config["num_bins"])
        layer = cls(**config)
        if output_dim is not None:
            layer._output_dim = int(output_dim)
        if isinstance(output_dim, StateReference):
            layer._copy_state(output_dim.layer)
        return layer

    def _copy_state(self, other: Discretizer) -> None:
        with tf.init_scope():  # outside of a function that is being traced
            if tf.executing_eagerly():
                for (_, mine), (_, theirs) in zip(self._stored(), other._stored(), strict=True):
                    mine.assign(theirs.read_value())

    def save_own_variables(self, store: Any) -> None:
        """Writes the state to a `.keras` or `.weights.h5` file."""
        for name, variable in self._stored():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the state, of any size."""
        for name, variable in self._stored():
            variable.assign(np.array(store[name]))
        self._sketch = self.new_sketch()

    def _stored(self) -> list[tuple[str, tf.Variable]]:
        names = [f"sketch_{name}" for name in SketchState._fields]
        sketch = list(zip(names, self.sketch_variables, strict=False))
        return [*zip(_STATE, self.state_variables, strict=True), *sketch]
