"""Gradient-boosted trees as a layer in front of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from twml_ops import core, ops
from twml_ops._keras import serializable
from twml_ops.layers._arguments import check_positive_integer
from twml_ops.layers._category_counts import fold_of
from twml_ops.layers._resizable_state import ResizableState
from twml_ops.layers._row_sample import RowSample
from twml_ops.layers._tree_arrays import TreeOptions, load_lightgbm, train_folds
from twml_ops.ops.hash import hash_keys

_CHUNK = 1 << 16  # examples whose columns are computed at a time
_STATE = {
    "features": (tf.int32, 1),
    "thresholds": (tf.float32, 1),
    "missing_left": (tf.uint8, 1),
    "children": (tf.int32, 2),
    "values": (tf.float32, 1),
    "roots": (tf.int32, 2),
}


@serializable
class BoostedTrees(ResizableState, tf.keras.layers.Layer):
    """Replaces numbers by the logit that gradient-boosted trees predict from them.

    Trees find thresholds and interactions that a dense net finds late or not at all; the net that
    follows corrects and extends them. He et al., 2014, "Practical Lessons from Predicting Clicks on
    Ads at Facebook", put trees in front of a linear model. Here, as in stacking (Wolpert, 1992,
    "Stacked generalization"), a row is not given a prediction of trees that were trained on its
    label: rows are divided into folds by a hash of their row keys, as in `TargetStatistics`, and
    one ensemble is trained for each fold on the rows of the others. In training a row has the logit
    of the ensemble of its fold, in inference the mean of all ensembles. Columns that are
    `TargetStatistics` need care: statistics of the other folds hold labels of this one, and trees
    can infer them. The argument `columns` of `adapt` leaves out the fold of the ensemble, too.

    `adapt` trains with LightGBM; a model that is loaded does not need it. Each ensemble has the
    number of trees with the lowest log loss on its fold; the training ends when as many as
    max(20, 2 / `learning_rate`) more trees have not lowered it. The result does not depend on the
    order of the data or the number of threads.

    The state survives `.keras` files, checkpoints and SavedModels, bit for bit.

    Args:
        num_inputs: number of columns, C.
        num_optional: number of columns in front that can be missing, P, default 0.
        num_folds: number of folds, at least 2, default 5.
        num_ensembles: number of folds, the first ones, that have an ensemble; each costs the same
            time in training and in inference. None: all have one. Fewer need `out_of_fold=False`,
            as the rows of the other folds would have no ensemble in training.
        max_trees: largest number of trees of an ensemble, default 300.
        max_depth: largest depth of a tree, default 8.
        num_leaves: largest number of leaves of a tree, at least 2, default 31.
        min_examples: smallest number of examples of a leaf, default 50.
        learning_rate: factor of the values of the leaves, in (0, 1], default 0.1.
        seed: the seed of the random half of the columns and 80 % of the rows that a tree is made
            of.
        alternatives: other values of `max_trees`, `max_depth`, `num_leaves`, `min_examples` and
            `learning_rate`, as dictionaries by these names. `adapt` trains all ensembles with each
            of them as well, which costs as much again, and takes a later one if the log loss of the
            folds is lower than with the one taken before by more than the standard error of the
            difference. Default: none.
        out_of_fold: if false, a row has the mean of all ensembles in training too, for a net that
            is trained without the trees. `call` needs no row keys then.
        **kwargs: of `tf.keras.layers.Layer`.

    Attributes:
        held_out_gain: after `adapt`, the share of the log loss of a constant by which the ensembles
            are better on their folds, on whose labels they were not trained; 0 before. The folds
            decide on the number of trees, though, so that noise has a little gain, too.

    Raises:
        ValueError: an argument out of its range.
    """

    state_names: ClassVar[tuple[str, ...]] = tuple(_STATE)
    sizing_argument: ClassVar[str] = "num_inputs"

    def __init__(
        self,
        num_inputs: int,
        num_optional: int = 0,
        num_folds: int = 5,
        num_ensembles: int | None = None,
        max_trees: int = 300,
        max_depth: int = 8,
        num_leaves: int = 31,
        min_examples: int = 50,
        learning_rate: float = 0.1,
        seed: int = 0,
        out_of_fold: bool = True,
        alternatives: Sequence[Mapping[str, Any]] = (),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)
        kwargs.setdefault("dtype", "float32")  # also under mixed precision
        super().__init__(**kwargs)
        self.num_inputs = check_positive_integer("num_inputs", num_inputs)
        if not 0 <= num_optional <= self.num_inputs:
            raise ValueError(f"num_optional must be in [0, {num_inputs}], got {num_optional}")
        self.num_optional = int(num_optional)
        self.num_folds = check_positive_integer("num_folds", num_folds)
        if self.num_folds < 2:
            raise ValueError(f"num_folds must be at least 2, got {num_folds}")
        self.max_trees, self.max_depth, self.num_leaves = max_trees, max_depth, num_leaves
        self.min_examples, self.learning_rate, self.seed = min_examples, learning_rate, int(seed)
        self.alternatives = [dict(other) for other in alternatives]
        self._options()  # checks them
        self.learning_rate = float(learning_rate)
        self.out_of_fold = bool(out_of_fold)
        most = self.num_folds
        self.num_ensembles = most if num_ensembles is None else num_ensembles
        check_positive_integer("num_ensembles", self.num_ensembles)
        if self.num_ensembles > most or (self.num_ensembles < most and self.out_of_fold):
            least = most if self.out_of_fold else 1
            raise ValueError(
                f"num_ensembles must be in [{least}, {most}] with num_folds = {most} and "
                f"out_of_fold = {self.out_of_fold}, got {num_ensembles}"
            )
        self.held_out_gain = 0.0
        self.supports_jit = False  # the ops cannot be compiled by XLA
        with tf.init_scope(), tf.device("CPU:0"):
            for name, (dtype, rank) in _STATE.items():
                empty = tf.zeros([0] * rank, dtype)
                variable = tf.Variable(empty, trainable=False, shape=[None] * rank, name=name)
                setattr(self, f"_{name}", variable)  # checkpoints of Keras 3 ignore lists

    @staticmethod
    def is_available() -> bool:
        """Tells whether LightGBM, which `adapt` needs, can be loaded.

        Returns:
            Whether it can be loaded.
        """
        try:
            load_lightgbm()
        except ImportError:
            return False
        return True

    @property
    def adapted(self) -> bool:
        """Whether there are trees: from `adapt`, or loaded."""
        return self._has_state

    @property
    def depth(self) -> int:
        """Largest depth that a tree can have: `max_depth`, also of the alternatives."""
        return max(options.max_depth for options in self._options())

    @property
    def num_trees(self) -> int:
        """Number of trees of the largest ensemble; 0 before `adapt`."""
        return int(self._roots.shape[1] or tf.shape(self._roots)[1])

    def adapt(
        self,
        data: Any,
        max_examples: int = 1 << 20,
        columns: Callable[[list[np.ndarray], int], Any] | None = None,
        state: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Trains the trees. They replace the trees of an earlier call.

        Args:
            data: iterable, such as a `tf.data.Dataset`, of `(inputs, labels)` or
                `(inputs, labels, weights)`, where inputs are the inputs of the layer with row keys,
                and labels in [0, 1] and weights have the shape [B] or [B, 1].
            max_examples: the trees are made of at most so many examples. Of more, a sample is taken
                by a hash of the row keys. Memory: 4 · C + 40 bytes an example, with `columns` the
                bytes of the inputs + 24.
            columns: None, or `(inputs, fold)` → the inputs of the layer without row keys, as the
                ensemble of `fold` may know them: no label of the fold may be in them. `inputs` are
                the arrays of `data` of some examples, of this fold and of others, the row keys
                last; they may be any arrays [B, ...] then. Threads call it at the same time. For
                statistics of the categories `ids`, with the same number of folds:

                    statistics.adapt([((ids, row_keys), labels)])
                    trees.adapt(
                        [([ids, row_keys], labels)],
                        columns=lambda inputs, fold: statistics(
                            tuple(inputs), training=True, without=fold
                        ),
                    )
            state: with `columns`, arrays that determine together with `inputs` what it returns,
                such as the variables of these statistics. The last few ensembles are remembered,
                and with these arrays they are found without a call of `columns`. None: what
                `columns` returns is compared.

        Raises:
            ImportError: LightGBM is not installed.
            ValueError: elements of another form, labels or weights out of range, or no examples.
                The state is unchanged.
        """
        collected = RowSample(check_positive_integer("max_examples", max_examples))
        for element in data:
            inputs, labels, *weights = element
            if columns is None:
                inputs = self._arranged(inputs)
                if inputs[1] is None:
                    raise ValueError(
                        "data must have the row keys as the last of the inputs, got none"
                    )
            *parts, row_keys = [np.asarray(part) for part in inputs]
            y = _column("labels", labels, len(row_keys), 1.0)
            w = _column("weights", weights[0], len(y), np.inf) if weights else np.ones(len(y))
            collected.update(row_keys.astype(np.int64).reshape(-1), y, w, *parts)
        examples = collected.rows()
        if not examples or not len(examples[0]):
            raise ValueError("data must have at least one example, got none")
        keys, y, w, *parts = examples

        def known(rows: np.ndarray, fold: int) -> np.ndarray:
            if columns is None:
                return np.asarray(parts[0][rows])
            x = np.empty((len(rows), self.num_inputs), np.float32)
            for first in range(0, len(rows), _CHUNK):
                some = rows[first : first + _CHUNK]
                found = columns([*(part[some] for part in parts), keys[some]], fold)
                x[first : first + _CHUNK] = self._arranged(found)[0]
            return x

        folds = fold_of(keys, self.num_folds, None, core.hash_ids, np.searchsorted)
        origin = None if state is None else [*parts, keys, *state]
        arrays, self.held_out_gain = train_folds(
            known, y, w, folds, self.num_ensembles, self._options(), origin
        )
        for name, variable in zip(self.state_names, self.state_variables, strict=True):
            variable.assign(arrays[name])

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Predicts the logits of a batch.

        Args:
            inputs: a list `[x, present, row_keys]`: floats [B, C]; bool [B, P], whether the first P
                columns are there, only if P > 0; integers [B], needed in training
                only. NaN is a
                missing number, in each column.
            training: if true, each row is given the logit of trees not trained on its label.

        Returns:
            float32 [B, 1].

        Raises:
            ValueError: another shape, no row keys in training, or the layer was not adapted.
        """
        x, row_keys = self._arranged(inputs)
        not_adapted = f"BoostedTrees '{self.name}' is not adapted: call adapt(data)"
        if tf.executing_eagerly() and not self.adapted:
            raise ValueError(not_adapted)
        roots = self._roots.read_value()
        may_train = self.out_of_fold and training is not None and training is not False
        if may_train and row_keys is None:
            raise ValueError("inputs must end with the row keys in training, got none")
        with tf.control_dependencies([tf.debugging.assert_positive(tf.size(roots), not_adapted)]):
            x = tf.identity(x)
        if not may_train:
            ensembles = tf.zeros([0], tf.int64)
        elif training is True:
            ensembles = self._own_ensembles(row_keys)
        else:
            ensembles = tf.cond(
                tf.cast(training, tf.bool),
                lambda: self._own_ensembles(row_keys),
                lambda: tf.zeros([0], tf.int64),
            )
        variables = zip(self.state_names, self.state_variables, strict=True)
        nodes = {name: variable.read_value() for name, variable in variables} | {"roots": roots}
        return ops.tree_sums(x, ensembles, **nodes, max_depth=self.depth)[:, tf.newaxis]

    def _arranged(self, inputs: Any) -> tuple[tf.Tensor, Any]:
        """X with NaN where a number is missing, and the row keys or None."""
        parts = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
        x = tf.cast(tf.convert_to_tensor(parts.pop(0)), tf.float32)
        if x.shape.rank != 2 or x.shape[1] != self.num_inputs:
            raise ValueError(f"x must have the shape [B, {self.num_inputs}], got {x.shape}")
        if self.num_optional:
            if not parts or tuple(parts[0].shape[1:]) != (self.num_optional,):
                got = parts[0].shape if parts else "nothing"
                raise ValueError(f"present must be bool [B, {self.num_optional}], got {got}")
            present = tf.cast(parts.pop(0), tf.bool)
            split = self.num_optional
            x = tf.concat([tf.where(present, x[:, :split], np.nan), x[:, split:]], axis=1)
        if len(parts) > 1:
            raise ValueError(f"inputs have {len(parts) - 1} items too many behind the row keys")
        return x, tf.reshape(tf.cast(parts[0], tf.int64), [-1]) if parts else None

    def _own_ensembles(self, row_keys: tf.Tensor) -> tf.Tensor:
        """int64 [B]: the ensembles that have not seen the labels of the rows."""
        return fold_of(row_keys, self.num_folds, None, hash_keys, tf.searchsorted)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """`[B, 1]`."""
        several = isinstance(input_shape[0], (tuple, list, tf.TensorShape))
        return (input_shape[0][0] if several else input_shape[0], 1)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        names = ["num_optional", "num_folds", "num_ensembles", "max_trees", "max_depth"]
        names += ["num_leaves", "min_examples", "learning_rate", "seed", "out_of_fold"]
        own = {name: getattr(self, name) for name in names}
        alternatives = [dict(other) for other in self.alternatives]
        return {**config, **self._reference(), **own, "alternatives": alternatives}

    def _options(self) -> list[TreeOptions]:
        """The options of the layer and of the alternatives, checked."""
        names = [name for name in TreeOptions._fields if name != "seed"]
        own = {name: getattr(self, name) for name in names}
        for other in self.alternatives:
            if not set(other) <= set(names):
                raise ValueError(f"alternatives must have some of {names}, got {sorted(other)}")
        return [
            _checked(TreeOptions(**{**own, **dict(other)}, seed=self.seed))
            for other in ({}, *self.alternatives)
        ]


def _checked(options: TreeOptions) -> TreeOptions:
    """The options, if they are in their ranges."""
    for name in ("max_trees", "max_depth", "num_leaves", "min_examples"):
        check_positive_integer(name, getattr(options, name))
    if options.num_leaves < 2:
        raise ValueError(f"num_leaves must be at least 2, got {options.num_leaves}")
    if not 0 < options.learning_rate <= 1:
        raise ValueError(f"learning_rate must be in (0, 1], got {options.learning_rate!r}")
    return options


def _column(name: str, values: Any, rows: int, largest: float) -> Any:
    column = np.asarray(values, np.float64).reshape(-1)
    if len(column) != rows:
        raise ValueError(f"{name} must have the shape [{rows}] or [{rows}, 1], got {len(column)}")
    if not (np.isfinite(column) & (column >= 0) & (column <= largest)).all():
        raise ValueError(f"{name} must be finite and in [0, {largest}], got {column}")
    return column
