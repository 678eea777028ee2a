"""Chooses the crosses of categorical fields whose statistics improve predictions."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twml_ops import core
from twml_ops.layers._cross_gains import CrossRanking, Limits, linear_logits
from twml_ops.layers._recent_results import RecentResults
from twml_ops.layers._tree_arrays import TreeOptions, log_losses, train_ensemble
from twml_ops.layers.boosted_trees import BoostedTrees
from twml_ops.layers.count_statistics import CountStatistics
from twml_ops.layers.target_statistics import TargetStatistics

Array = npt.NDArray[Any]

MIN_EXAMPLES = 1000
MAX_CATEGORIES = 1 << 22
_HELD_OUT = 5  # one of so many examples
_MAX_TREE_EXAMPLES = 1 << 16  # on which the trees are trained that compare columns
_BITS, _SALT = 31, 3
_TREES = TreeOptions(50, 8, 31, 50, 0.2, 0)  # large steps are enough to compare columns
_SEEDS = (0, 1)  # of one alone, the chance in the training decides as much as the columns do
_recent: RecentResults[list[tuple[int, ...]]] = RecentResults()


class Examples(NamedTuple):
    """N examples: ids [N, F], row keys, labels and weights [N], numbers [N, C]."""

    ids: Array
    row_keys: Array
    labels: Array
    weights: Array
    numbers: Array


def choose_crosses(
    ids: Any,
    row_keys: Any,
    labels: Any,
    weights: Any = None,
    *,
    numbers: Any = None,
    held_out: Any = None,
    max_crosses: int = 24,
    max_size: int = 3,
    num_examples: int | None = None,
) -> list[tuple[int, ...]]:
    """Chooses pairs and triples of categorical fields for `TargetStatistics(crosses=...)`.

    Some examples are held out. The others are used for a search: crosses are added one after the
    other, each by how much its statistics reduce the log loss of a linear model that has the
    statistics of the fields and of the earlier crosses. A triple is tried once a pair of its fields
    is chosen. Time: O(N) for each candidate.

    The examples that are held out decide whether the crosses are used. Boosted trees are trained on
    the others with the statistics of the fields alone, and once more with the statistics of the
    crosses as well, each with two seeds. The crosses are returned if the trees that have them
    predict the examples held out better, whose labels are in no statistic, by more than half a
    standard error of the mean loss of both seeds. Without LightGBM linear models take the place of
    the trees.

    Args:
        ids: int64 [N, F]; negative ids are missing values.
        row_keys: int64 [N], different for each example.
        labels: [N], in [0, 1].
        weights: [N], not negative; None: 1.
        numbers: float [N, C], other columns that the model has; NaN is a missing number. None:
            there are none.
        held_out: bool [N], the examples that are held out, for example the latest ones; None: a
            fifth by a hash of the row keys.
        max_crosses: largest number of crosses.
        max_size: largest number of fields of a cross, at least 2.
        num_examples: number of examples of which these are a sample; None: N. It is used to
            estimate the number of categories of the crosses, of which there are at most 2^22.

    Returns:
        Tuples of positions of fields, best first. None for fewer than 1,000 examples. The result
        does not depend on the order of the examples.

    Raises:
        ValueError: shapes that do not fit.
    """
    table, keys = np.asarray(ids, np.int64), np.asarray(row_keys, np.int64).reshape(-1)
    y = np.asarray(labels, np.float64).reshape(-1)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64).reshape(-1)
    x = np.zeros((len(y), 0), np.float32) if numbers is None else np.asarray(numbers, np.float32)
    if table.ndim != 2 or {len(keys), len(y), len(w), len(x)} != {len(table)}:
        shapes = [table.shape, keys.shape, y.shape, w.shape, x.shape]
        raise ValueError(f"ids must be [N, F] and the other arguments have N rows, got {shapes}")
    if max_size < 2:
        raise ValueError(f"max_size must be at least 2, got {max_size}")
    rest = core.hash_ids(keys, _BITS, _SALT) % _HELD_OUT == 0
    if held_out is not None:
        rest = np.asarray(held_out, bool).reshape(-1)
        if len(rest) != len(y):
            raise ValueError(f"held_out must have {len(y)} items, got {len(rest)}")
    if len(y) < MIN_EXAMPLES or table.shape[1] < 2 or max_crosses < 1:
        return []
    order = np.argsort(keys, kind="stable")
    examples = Examples(*(column[order] for column in (table, keys, y, w, x)))
    rest = rest[order]
    limits = Limits(max_crosses, max_size, MAX_CATEGORIES * len(y) / (num_examples or len(y)))
    crosses = _recent.get([*examples, rest], limits, lambda: _choose(examples, rest, limits))
    return list(crosses)


def _choose(examples: Examples, held_out: Array, limits: Limits) -> list[tuple[int, ...]]:
    fit, rest = (Examples(*(c[rows] for c in examples)) for rows in (~held_out, held_out))
    if not 0 < fit.weights @ fit.labels < fit.weights.sum():
        return []
    crosses = CrossRanking(fit.ids, fit.labels, fit.weights).choose(limits)
    if not crosses:
        return []
    alone, crossed = _losses(crosses, fit, rest)
    return crosses if _is_clear(alone - crossed) else []


def _is_clear(gains: Array) -> bool:
    """Whether the sum of the gains of examples exceeds half of its standard error."""
    return float(gains.sum()) > 0.5 * math.sqrt(len(gains)) * float(gains.std())


def _losses(crosses: list[tuple[int, ...]], fit: Examples, held_out: Examples) -> list[Array]:
    """The losses of the held-out examples, without and with the statistics of crosses."""
    fields = fit.ids.shape[1]
    with_trees = BoostedTrees.is_available()
    some = np.arange(len(fit.ids))
    if with_trees:
        some = np.argsort(core.hash_ids(fit.row_keys, _BITS, _SALT + 1), kind="stable")
        some = np.sort(some[:_MAX_TREE_EXAMPLES])
    seen = Examples(*(column[some] for column in fit))
    # The statistics are of all examples. All layers count the same.
    kinds = [kind(fields, crosses) for kind in (TargetStatistics, CountStatistics)]
    counts = kinds[0].new_counts()
    counts.update(fit.ids, fit.row_keys, fit.labels, fit.weights)
    x: list[list[tuple[Array, Array]]] = [[(seen.numbers, held_out.numbers)] for _ in range(2)]
    for layer in kinds:
        layer.adapt_from_counts(counts)
    found = kinds[0].find(seen.ids)
    for layer in kinds:
        values = layer.of_found(found, seen.row_keys).numpy()
        new = layer(held_out.ids).numpy()
        x[0].append((values[:, :fields], new[:, :fields]))
        x[1].append((values, new))

    arms = []
    for columns in x:
        values, new = (np.concatenate(part, axis=1) for part in zip(*columns, strict=True))
        arms.append(((values, seen.labels, seen.weights), (new, held_out.labels, held_out.weights)))
    if not with_trees:
        return [_losses_of_linear_model(*arm) for arm in arms]

    def losses(arm: int, seed: int) -> Array:
        return train_ensemble(*arms[arm], _TREES._replace(seed=seed)).losses

    tasks = [(arm, seed) for seed in _SEEDS for arm in range(2)]
    with ThreadPoolExecutor(2) as pool:  # each trains in one thread
        found_losses = list(pool.map(losses, *zip(*tasks, strict=True)))
    return [np.mean(found_losses[arm::2], axis=0) for arm in range(2)]


def _losses_of_linear_model(fit: tuple[Array, ...], held_out: tuple[Array, ...]) -> Array:
    x, mean = np.nan_to_num(fit[0]), np.average(fit[1], weights=fit[2])
    base = float(np.log(mean / (1 - mean)))
    _, logits = linear_logits(x, fit[1], fit[2], base, np.nan_to_num(held_out[0]))
    assert logits is not None
    return log_losses(held_out, base + logits)
