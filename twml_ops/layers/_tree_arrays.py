"""Trains gradient-boosted trees with LightGBM and returns them as arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twml_ops.layers._recent_results import RecentResults

Array = npt.NDArray[Any]

_PATIENCE = 20  # trees without a gain before the training stops, of steps of 0.1 and more
_SUM_OF_STEPS = 2.0  # of the learning rate over these trees, if the steps are smaller
_BIN_EXAMPLES = 50_000  # of which the bins of the columns are made
_MAX_HELD_OUT = 1 << 14  # examples of a fold that decide the number of trees
_REMEMBERED = 40  # ensembles, of which a call has one for each fold and alternative


class TreeOptions(NamedTuple):
    """Options of the training.

    Attributes:
        max_trees: largest number of trees of an ensemble.
        max_depth: largest depth of a tree.
        num_leaves: largest number of leaves of a tree.
        min_examples: smallest number of examples of a leaf.
        learning_rate: factor of the values of the leaves.
        seed: the seed of the columns and rows that a tree uses.
    """

    max_trees: int
    max_depth: int
    num_leaves: int
    min_examples: int
    learning_rate: float
    seed: int


class OfFold(NamedTuple):
    """The parts of the ensemble of a fold that are kept.

    Attributes:
        nodes: of its trees, see `Nodes.arrays`.
        losses: log loss of each example of the fold, times its weight.
        loss_of_constant: that of the share of positives of the other folds, summed.
    """

    nodes: dict[str, Array]
    losses: Array
    loss_of_constant: float


_recent: RecentResults[OfFold] = RecentResults(_REMEMBERED)


class Ensemble(NamedTuple):
    """The trees that were trained for a fold.

    Attributes:
        trees: roots, as in the dictionaries of `lightgbm.Booster.dump_model`.
        losses: log loss of each example of the fold, times its weight.
        loss_of_constant: the log loss of the share of positives of the other folds, summed over
            folds.
    """

    trees: list[Mapping[str, Any]]
    losses: Array
    loss_of_constant: float


def train_folds(
    columns: Callable[[Array, int], Array],
    labels: Array,
    weights: Array,
    folds: Array,
    num_ensembles: int,
    alternatives: Sequence[TreeOptions],
    origin: Sequence[Array] | None = None,
) -> tuple[dict[str, Array], float]:
    """Trains an ensemble of trees for each of the first folds, on the examples of the others.

    Of several alternatives, a later one is taken if its log loss of the folds is lower than that of
    the one taken before by more than the standard error of the difference.

    The number of trees of an ensemble is the one with the lowest log loss on its fold, of which at
    most 2^14 examples at equal distances are looked at. The last few ensembles are remembered,
    because the trials of a search differ in the net and train the same trees.

    Args:
        columns: `(rows, fold)` → float32 [N', C], what the ensemble of `fold` may know of the
            examples `rows`, int64 [N']; NaN is a missing number.
        labels: float64 [N], in [0, 1].
        weights: float64 [N].
        folds: int [N], the fold of each example.
        num_ensembles: number of ensembles, K: of the folds in [0, K).
        alternatives: options of the training, at least one.
        origin: arrays that determine, for all rows, what `columns` returns, so that ensembles that
            are remembered need no columns; None: the columns themselves are compared.

    Returns:
        The nodes of all trees and the root of each tree, see `Nodes.arrays`; and the share of the
        log loss of a constant by which the trees are better on the examples that they have not
        seen.

    Raises:
        ImportError: LightGBM is not installed.
    """

    def ensemble(fold: int, options: TreeOptions) -> OfFold:
        own = folds == fold
        rows = np.flatnonzero(own)
        parts = [np.flatnonzero(~own), rows[:: -(-len(rows) // _MAX_HELD_OUT) or 1]]

        def examples() -> tuple[Sequence[Array], Sequence[Array]]:
            train, held_out = ((columns(i, fold), labels[i], weights[i]) for i in parts)
            return train, held_out

        if origin is not None:
            given = [*origin, labels, weights, folds]
            return _recent.get(given, (options, fold), lambda: _train_fold(*examples(), options))
        train, held_out = examples()
        return _recent.get(
            [*train, *held_out], options, lambda: _train_fold(train, held_out, options)
        )

    # One thread for each ensemble: the threads of OpenMP wait for one another after every node.
    each = [(fold, options) for options in alternatives for fold in range(num_ensembles)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        trained = list(pool.map(ensemble, *zip(*each, strict=True)))
    ensembles = _best([trained[i : i + num_ensembles] for i in range(0, len(each), num_ensembles)])
    constant = sum(e.loss_of_constant for e in ensembles)
    loss = sum(float(e.losses.sum()) for e in ensembles)
    gain = 1 - loss / constant if constant > 0 else 0.0
    return _joined([e.nodes for e in ensembles]), gain


def _best(alternatives: Sequence[Sequence[OfFold]]) -> Sequence[OfFold]:
    """The ensembles of the alternative to take, see `train_folds`."""
    best, *others = alternatives
    for other in others:
        pairs = zip(best, other, strict=True)
        gains = np.concatenate([before.losses - after.losses for before, after in pairs])
        if gains.sum() > math.sqrt(len(gains)) * gains.std():
            best = other
    return best


def _train_fold(train: Sequence[Array], held_out: Sequence[Array], options: TreeOptions) -> OfFold:
    found = train_ensemble(train, held_out, options)
    nodes = Nodes()
    nodes.add_ensemble(found.trees)
    return OfFold(nodes.arrays(), found.losses, found.loss_of_constant)


def _joined(ensembles: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The nodes of several ensembles, each of which numbers its nodes from 0."""
    longest = max(e["roots"].shape[1] for e in ensembles)
    joined: dict[str, list[Array]] = {name: [array[:1]] for name, array in ensembles[0].items()}
    joined["roots"] = []
    first = 0  # what is added to the numbers of the nodes
    for ensemble in ensembles:
        for name, array in ensemble.items():
            moved = (
                np.where(array > 0, array + first, 0) if name in ("children", "roots") else array
            )
            if name == "roots":
                moved = np.pad(moved, [(0, 0), (0, longest - moved.shape[1])])
            joined[name].append(moved if name == "roots" else moved[1:])
        first += len(ensemble["values"]) - 1
    return {
        name: np.concatenate(arrays).astype(ensembles[0][name].dtype)
        for name, arrays in joined.items()
    }


def train_ensemble(
    train: Sequence[Array], held_out: Sequence[Array], options: TreeOptions
) -> Ensemble:
    """Trains an ensemble of the number of trees that has the lowest log loss on other examples.

    Args:
        train: x, labels and weights of the examples to train on, as of `train_folds`.
        held_out: the same for the examples that decide the number of trees.
        options: the options of the training.

    Raises:
        ImportError: LightGBM is not installed.
    """
    lightgbm = load_lightgbm()
    positives, total = float(train[1] @ train[2]), float(train[2].sum())
    constant = math.log((positives + 0.5) / (total - positives + 0.5))
    of_constant = log_losses(held_out, np.full(len(held_out[0]), constant))
    loss_of_constant = float(of_constant.sum())
    if min(len(train[0]), len(held_out[0])) < options.min_examples or not 0 < positives < total:
        return Ensemble([{"leaf_value": constant}], of_constant, loss_of_constant)
    binary = bool(np.isin(train[1], (0, 1)).all() and np.isin(held_out[1], (0, 1)).all())
    parameters = {
        "objective": "binary" if binary else "cross_entropy",
        "learning_rate": options.learning_rate,
        "num_leaves": options.num_leaves,
        "max_depth": options.max_depth,
        "min_data_in_leaf": options.min_examples,
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 1.0,
        "seed": options.seed,
        "deterministic": True,
        "force_row_wise": True,
        "bin_construct_sample_cnt": _BIN_EXAMPLES,
        "num_threads": 1,
        "verbosity": -1,
    }
    patience = max(_PATIENCE, math.ceil(_SUM_OF_STEPS / options.learning_rate))
    data = lightgbm.Dataset(
        train[0], train[1], weight=train[2], params=parameters, free_raw_data=False
    )
    booster = lightgbm.train(
        parameters,
        data,
        options.max_trees,
        valid_sets=[data.create_valid(held_out[0], held_out[1], weight=held_out[2])],
        callbacks=[lightgbm.early_stopping(patience, verbose=False)],
    )
    best = booster.best_iteration
    # LightGBM keeps the number of threads for the whole process. A call without it would set it to
    # the number of cores while other threads train with buffers for one, and write past their ends.
    logits = booster.predict(held_out[0], num_iteration=best, raw_score=True, num_threads=1)
    losses = log_losses(held_out, logits)
    trees = booster.dump_model(num_iteration=best)["tree_info"]
    return Ensemble([tree["tree_structure"] for tree in trees], losses, loss_of_constant)


def log_losses(examples: Sequence[Array], logits: Array) -> Array:
    """The log loss of each example, times its weight.

    Args:
        examples: x, labels and weights.
        logits: the logits of the predictions.
    """
    _, labels, weights = examples
    losses: Array = weights * (np.logaddexp(0, logits) - labels * logits)
    return losses


def load_lightgbm() -> Any:
    """The module `lightgbm`.

    Raises:
        ImportError: it is not installed, or cannot be loaded.
    """
    try:
        import lightgbm
    except (ImportError, OSError) as error:  # OSError: its OpenMP library is missing
        raise ImportError(
            f"boosted trees need LightGBM (`pip install lightgbm`), which was not loaded: {error}"
        ) from error
    return lightgbm


class Nodes:
    """Collects the nodes of the trees of ensembles."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, bool, float, float]] = []
        self._roots: list[list[int]] = []
        self._add_leaf(0.0)  # what pads short ensembles

    def add_ensemble(self, trees: Iterable[Mapping[str, Any]]) -> None:
        """Adds the trees of the next ensemble.

        Args:
            trees: roots, as in the dictionaries of `lightgbm.Booster.dump_model`.
        """
        self._roots.append([self._add(tree) for tree in trees])

    def arrays(self) -> dict[str, Array]:
        """The nodes and the roots.

        Returns:
            `features` int32 [M], the column that a node compares; `thresholds` float32 [M], a row
            goes left if its number is not larger; `missing_left` uint8 [M], whether it goes left
            without a number; `children` int32 [M, 2], left and right, of a leaf the leaf itself;
            `values` float32 [M] of the leaves; `roots` int32 [K, T], 0 behind the last tree of an
            ensemble.
        """
        left, right, feature, missing, threshold, value = zip(*self._rows, strict=True)
        longest = max(map(len, self._roots))
        roots = [found + [0] * (longest - len(found)) for found in self._roots]
        return {
            "features": np.array(feature, np.int32),
            "thresholds": _rounded_down(np.array(threshold, np.float64)),
            "missing_left": np.array(missing, np.uint8),
            "children": np.stack([np.array(left, np.int32), np.array(right, np.int32)], axis=1),
            "values": np.array(value, np.float32),
            "roots": np.array(roots, np.int32).reshape(len(roots), longest),
        }

    def _add_leaf(self, value: float) -> int:
        index = len(self._rows)
        self._rows.append((index, index, 0, True, 0.0, value))
        return index

    def _add(self, node: Mapping[str, Any]) -> int:
        if "split_feature" not in node:
            return self._add_leaf(node["leaf_value"])
        threshold = float(node["threshold"])
        # Without missing numbers in the training data, LightGBM takes them as 0.
        missing = node["default_left"] if node["missing_type"] == "NaN" else threshold >= 0
        index = self._add_leaf(0.0)
        left, right = self._add(node["left_child"]), self._add(node["right_child"])
        self._rows[index] = (left, right, node["split_feature"], bool(missing), threshold, 0.0)
        return index


def _rounded_down(thresholds: Array) -> Array:
    """The largest float32 that are not larger: x ≤ t has the same result for all float32 x."""
    with np.errstate(over="ignore"):
        rounded = thresholds.astype(np.float32)
    above = (rounded > thresholds) & np.isfinite(rounded)
    return np.where(above, np.nextafter(rounded, np.float32(-np.inf)), rounded)
