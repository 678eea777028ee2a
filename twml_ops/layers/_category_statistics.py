"""The base of the layers that replace categories by statistics of the training data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import as_ids
from twml_ops._category_hash import category_keys
from twml_ops.layers._arguments import check_positive_integer
from twml_ops.layers._category_counts import CategoryCounts, fold_of
from twml_ops.layers._resizable_state import ResizableState
from twml_ops.ops.hash import hash_keys

_STATE = ("keys", "counts", "label_sums", "totals")


class CategoryStatistics(ResizableState, tf.keras.layers.Layer):
    """Base class with `adapt`, the state, and the sums over all folds but the one of each row.

    The state is in variables whose size `adapt` or a checkpoint determines; they are empty before.
    """

    state_names: ClassVar[tuple[str, ...]] = _STATE
    sizing_argument: ClassVar[str] = "num_fields"

    def __init__(
        self,
        num_fields: int,
        crosses: Sequence[Sequence[int]] = (),
        num_folds: int = 5,
        time_boundaries: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "float32")  # also under mixed precision
        super().__init__(**kwargs)
        self.num_fields = check_positive_integer("num_fields", num_fields)
        self.crosses = tuple(_checked_cross(c, self.num_fields) for c in crosses)
        self.time_boundaries = None
        if time_boundaries is not None:
            self.time_boundaries = _checked_boundaries(time_boundaries)
            num_folds = len(self.time_boundaries) + 1
        self.num_folds = check_positive_integer("num_folds", num_folds)
        if self.num_folds < 2:
            raise ValueError(f"num_folds must be at least 2, got {num_folds}")
        self.supports_jit = False  # the hash op cannot be compiled by XLA
        with tf.init_scope(), tf.device("CPU:0"):
            for name in self.state_names:
                dtype = tf.int64 if name == "keys" else tf.float32
                shape = [None] if name == "keys" else [None, None]
                empty = tf.zeros([0] * len(shape), dtype)
                variable = tf.Variable(empty, trainable=False, shape=shape, name=name)
                setattr(self, f"_{name}", variable)  # checkpoints of Keras 3 ignore lists

    @property
    def output_dim(self) -> int:
        """Width of the output: a number for each field and each cross."""
        return self.num_fields + len(self.crosses)

    @property
    def adapted(self) -> bool:
        """Whether there is a state: from `adapt`, or loaded."""
        return self._has_state

    def new_counts(self) -> CategoryCounts:
        """Empty counts with the layer's options, for `CategoryCounts.update`.

        Returns:
            The counts; see `adapt_from_counts`.
        """
        return CategoryCounts(self.num_fields, self.crosses, self.num_folds, self.time_boundaries)

    def adapt(self, data: Any) -> None:
        """Computes the statistics in one pass over the data. They replace earlier statistics.

        Args:
            data: iterable, such as a `tf.data.Dataset`, of `((ids, row_keys), labels)` or
                `((ids, row_keys), labels, weights)`: int64 [B, F], int64 [B], labels in [0, 1] and
                weights of shape [B] or [B, 1].

        Raises:
            ValueError: elements of another form, or labels or weights out of range. The state is
                unchanged.
        """
        counts = self.new_counts()
        for element in data:
            try:
                (ids, row_keys), *rest = element
            except (TypeError, ValueError):
                rest = []
            if len(rest) not in (1, 2):
                raise ValueError(
                    "data must have elements ((ids, row_keys), labels) or "
                    f"((ids, row_keys), labels, weights), got {_description(element)}"
                )
            counts.update(ids, row_keys, *rest)
        self.adapt_from_counts(counts)

    def adapt_from_counts(self, *counts: CategoryCounts) -> None:
        """Computes the statistics from counts, such as one of each process that has read data.

        Args:
            *counts: made by `new_counts` of a layer with the same options. They are merged into
                counts of their own.

        Raises:
            ValueError: no counts, none with a row, or counts with other options.
        """
        merged = self.new_counts()
        merged.merge(*counts)
        state = merged.state()
        if not state["totals"][:, 0].sum() > 0:
            raise ValueError("counts must have at least one row with a positive weight, got none")
        for name, variable in zip(self.state_names, self.state_variables, strict=True):
            variable.assign(tf.cast(state[name], variable.dtype))

    def call(self, inputs: Any, training: Any = None, without: int | None = None) -> tf.Tensor:
        """Replaces categories by their statistics.

        Args:
            inputs: `ids`, integers [B, F], or a pair `(ids, row_keys)` with integers [B]. Training
                needs the pair; otherwise the row keys are ignored.
            training: if true, each row is given the statistics of the other folds, or with
                `time_boundaries` the statistics of earlier blocks, so that its own label is not
                among them.
            without: a fold that the statistics leave out as well, in training, for a model that
                predicts the rows of this fold; see `BoostedTrees.adapt`. Not with
                `time_boundaries`.

        Returns:
            float32 [B, F + crosses].

        Raises:
            ValueError: another shape, no row keys in training, a fold that there is not or that
                cannot be left out, or the layer was not adapted.
            tf.errors.InvalidArgumentError: an id of uint64 is 2^63 or more.
        """
        pair = isinstance(inputs, (tuple, list))
        ids = tf.cast(as_ids(tf.convert_to_tensor(inputs[0] if pair else inputs)), tf.int64)
        if ids.shape.rank != 2 or ids.shape[1] != self.num_fields:
            raise ValueError(f"ids must have the shape [B, {self.num_fields}], got {ids.shape}")
        not_adapted = f"{type(self).__name__} '{self.name}' is not adapted: call adapt(data)"
        if tf.executing_eagerly() and not self.adapted:
            raise ValueError(not_adapted)
        may_train = training is not None and training is not False
        if may_train and not pair:
            raise ValueError("inputs must be a pair (ids, row_keys) in training, got ids alone")
        if without is not None:
            self._check_left_out(without, may_train)
        totals = self._totals.read_value()
        # The hashes do not depend on the check, so layers that compute the same ones share them.
        keys = category_keys(ids, self.crosses, hash_keys, tf.gather, tf.concat)
        with tf.control_dependencies([tf.debugging.assert_positive(tf.size(totals), not_adapted)]):
            known = self._keys.read_value()
        used = tf.ones([1, self.num_folds])
        if may_train:
            used = tf.where(tf.cast(training, tf.bool), self._folds_used(inputs[1], without), used)
        return self._statistics(ops.find_keys(known, keys), used, totals)

    def find(self, ids: Any) -> tf.Tensor:
        """Where categories and crosses are in the state, for `of_found`.

        Args:
            ids: int64 [B, F].

        Returns:
            int64 [B, F + crosses]; layers with equal categories find them at equal places.
        """
        keys = category_keys(
            tf.convert_to_tensor(ids, tf.int64), self.crosses, hash_keys, tf.gather, tf.concat
        )
        return ops.find_keys(self._keys.read_value(), keys)

    def of_found(self, found: Any, row_keys: Any, without: int | None = None) -> tf.Tensor:
        """What `call` returns in training, for categories that `find` has looked up already.

        Args:
            found: int64 [B, F + crosses], as `find` returns.
            row_keys: integers [B].
            without: a fold that the statistics leave out beside that of the row; None: there is
                none.

        Returns:
            float32 [B, F + crosses].
        """
        if without is not None:
            self._check_left_out(without, True)
        rows = tf.convert_to_tensor(found, tf.int64)
        return self._statistics(
            rows, self._folds_used(row_keys, without), self._totals.read_value()
        )

    def _check_left_out(self, without: int, may_train: bool) -> None:
        if self.time_boundaries is not None:
            raise ValueError("without must be None with time_boundaries, which make no folds")
        if not may_train:
            raise ValueError("without needs training, in which folds are left out")
        if not 0 <= without < self.num_folds:
            raise ValueError(f"without must be a fold in [0, {self.num_folds}), got {without}")

    def _folds_used(self, row_keys: Any, without: int | None) -> tf.Tensor:
        """float32 [B, K]: 1 for the folds whose statistics a row may see in training."""
        row_keys = tf.reshape(tf.cast(tf.convert_to_tensor(row_keys), tf.int64), [-1])
        own = fold_of(row_keys, self.num_folds, self.time_boundaries, hash_keys, tf.searchsorted)
        folds, own = tf.range(self.num_folds), tf.cast(own, tf.int32)[:, tf.newaxis]
        used = folds != own if self.time_boundaries is None else folds < own
        if without is not None:
            used &= folds != without
        return tf.cast(used, tf.float32)

    def _sum(self, state: tf.Variable, rows: tf.Tensor, used: tf.Tensor) -> tf.Tensor:
        """[B, C]: the sum over the used folds of each key's row of `state` [U, K]."""
        return ops.gather_dot(state.read_value(), rows, used)

    def _scale(self, used: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
        """[B, 1]: the factor from sums over the used folds to comparable sums over all folds."""
        seen = tf.linalg.matvec(used, totals[:, 0])[:, tf.newaxis]
        return tf.math.divide_no_nan(tf.reduce_sum(totals[:, 0]), seen)

    def _statistics(self, rows: tf.Tensor, used: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> Any:
        """`[B, F + crosses]`."""
        pair = isinstance(input_shape[0], (tuple, list, tf.TensorShape))
        return (input_shape[0][0] if pair else input_shape[0], self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            **self._reference(),
            "crosses": [list(c) for c in self.crosses],
            "num_folds": self.num_folds,
            "time_boundaries": None if self.time_boundaries is None else [*self.time_boundaries],
        }


def _checked_cross(cross: Sequence[int], num_fields: int) -> tuple[int, ...]:
    fields = tuple(int(f) for f in cross)
    inside = all(0 <= f < num_fields for f in fields)
    if len(fields) < 2 or len(set(fields)) < len(fields) or not inside:
        raise ValueError(
            "a cross must have at least two different positions of fields in "
            f"[0, {num_fields}), got {list(cross)}"
        )
    return fields


def _checked_boundaries(boundaries: Sequence[int]) -> tuple[int, ...]:
    given = tuple(int(b) for b in boundaries)
    if not given or any(b <= a for a, b in itertools.pairwise(given)):
        raise ValueError(
            f"time_boundaries must be at least one row key, strictly ascending, got {given}"
        )
    return given


def _description(element: Any) -> str:
    if isinstance(element, (tuple, list)):
        return f"({', '.join(_description(e) for e in element)})"
    return type(element).__name__
