"""Features for libraries that take numbers: one-hot columns, vocabularies, target statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.quality.examples import Array, Examples

FOLDS = 5


class Buckets:
    """Quantile buckets of numbers.

    Args:
        numbers: float32 [R, C] of the training data, NaN where missing.
        count: buckets of a column.
    """

    def __init__(self, numbers: Array, count: int = 20) -> None:
        quantiles = np.linspace(0, 1, count + 1)[1:-1]
        self._boundaries = []
        for column in numbers.T:
            present = column[~np.isnan(column)]
            self._boundaries.append(np.unique(np.quantile(present, quantiles, method="lower")))

    def transform(self, numbers: Array) -> Array:
        """int64 [R, C]: the bucket, -1 where the number is missing."""
        ids = np.full(numbers.shape, -1, np.int64)
        for c, boundaries in enumerate(self._boundaries):
            present = ~np.isnan(numbers[:, c])
            ids[present, c] = np.searchsorted(boundaries, numbers[present, c], side="right")
        return ids


class Vocabulary:
    """Contiguous ids of the categories of each column.

    Id 0 of a column stands for missing categories and for those that the training data has fewer
    than `min_count` times.

    Args:
        categories: int64 [R, F] of the training data, -1 where missing.
        min_count: of categories with an id of their own.
    """

    def __init__(self, categories: Array, min_count: int = 1) -> None:
        self._known = []
        for column in categories.T:
            values, counts = np.unique(column, return_counts=True)
            self._known.append(values[(values >= 0) & (counts >= min_count)])

    @property
    def sizes(self) -> list[int]:
        """The number of ids of each column."""
        return [1 + len(known) for known in self._known]

    def transform(self, categories: Array) -> Array:
        """int64 [R, F]: ids in [0, sizes[f])."""
        ids = np.zeros(categories.shape, np.int64)
        for f, known in enumerate(self._known):
            if len(known):
                place = np.minimum(np.searchsorted(known, categories[:, f]), len(known) - 1)
                ids[:, f] = np.where(known[place] == categories[:, f], 1 + place, 0)
        return ids


class OneHot:
    """Sparse one-hot columns of buckets and of categories, beside the raw sparse features.

    Args:
        train: the training data.
    """

    def __init__(self, train: Examples) -> None:
        self._buckets = Buckets(train.numbers)
        self._vocabulary = Vocabulary(self._ids(train))

    def transform(self, examples: Examples) -> Any:
        """CSR matrix, with no column for what is missing or unknown."""
        ids = self._vocabulary.transform(self._ids(examples))
        offsets = np.concatenate([[0], np.cumsum(self._vocabulary.sizes)])
        rows, fields = np.nonzero(ids)
        columns = ids[rows, fields] + offsets[fields]
        shape = (len(examples), int(offsets[-1]))
        hot = scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape)
        return scipy.sparse.hstack([hot, examples.sparse], format="csr")

    def _ids(self, examples: Examples) -> Array:
        return np.hstack([self._buckets.transform(examples.numbers), examples.categories])


class TargetMeans:
    """Smoothed means of the label, and logarithms of counts, of each category.

    A mean is (positives + prior_weight · base rate) / (count + prior_weight). For the training data
    the sums leave out the fold of the example itself, so that its own label is not in its features
    (Micci-Barreca, "A Preprocessing Scheme for High-Cardinality Categorical Attributes", 2001).

    Args:
        train: the training data.
        prior_weight: number of examples that the base rate counts for.
        seed: the seed of the folds.
    """

    def __init__(self, train: Examples, prior_weight: float = 20.0, seed: int = 0) -> None:
        self._train, self._prior_weight = train, prior_weight
        self._folds = np.random.default_rng(seed).integers(0, FOLDS, len(train))
        self._vocabulary = Vocabulary(train.categories)
        self._ids = self._vocabulary.transform(train.categories)

    def of_training_data(self) -> Array:
        """float32 [R, 2 F]: the means of the other folds, then the log counts of all folds."""
        means = np.empty(self._ids.shape)
        for fold in range(FOLDS):
            inside = self._folds == fold
            means[inside] = self._means(~inside, self._ids[inside])
        return np.hstack([means, self._counts(self._ids)]).astype(np.float32)

    def transform(self, examples: Examples) -> Array:
        """float32 [R, 2 F] of other examples."""
        ids = self._vocabulary.transform(examples.categories)
        every = np.ones(len(self._train), bool)
        return np.hstack([self._means(every, ids), self._counts(ids)]).astype(np.float32)

    def _means(self, rows: Array, ids: Array) -> Array:
        labels, weight = self._train.labels[rows], self._prior_weight
        base = labels.mean()
        means = np.empty(ids.shape)
        for f, size in enumerate(self._vocabulary.sizes):
            column = self._ids[rows, f]
            counts = np.bincount(column, minlength=size)
            positives = np.bincount(column, labels, minlength=size)
            means[:, f] = ((positives + weight * base) / (counts + weight))[ids[:, f]]
        return means

    def _counts(self, ids: Array) -> Array:
        counts = np.empty(ids.shape)
        for f, size in enumerate(self._vocabulary.sizes):
            counts[:, f] = np.log1p(np.bincount(self._ids[:, f], minlength=size))[ids[:, f]]
        return counts
