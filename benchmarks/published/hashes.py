"""Hash functions of categories beside each other, at equal memory.

Every contender trains the same net on vectors of the fields. What differs is how the ids of a field
become vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from benchmarks.published.hash_data import SMALL, Data, embedding, model_of, read, train
from benchmarks.published.task import Done, Measured, Settings, Task
from twml_ops import layers, ops, research

UNITS, TEACHER_UNITS = 16, 8
"""Widths of the vectors that are compared, and of those that are clustered."""
MIN_COUNT = 20
_ROW = 4 * UNITS


class Teacher(NamedTuple):
    """A model in which every id has a vector of its own.

    Attributes:
        counts: how often the ids occur in the training part.
        categories: their rows.
        embedding: their vectors.
    """

    counts: layers.IdCounts
    categories: layers.CategoryRows
    embedding: layers.FieldEmbedding


class Setting(NamedTuple):
    """What a contender is made from.

    Attributes:
        data: the data.
        budgets: rows that the tables of the large fields have if there is no map.
        teacher: function without arguments.
        seed: the seed of the clusters.
    """

    data: Data
    budgets: list[int]
    teacher: Callable[[], Teacher]
    seed: int


class Vectors(NamedTuple):
    """How ids become vectors.

    Attributes:
        of: function of ids [B, fields].
        num_bytes: the number of bytes of the rows of the tables and of the map.
    """

    of: Callable[[Any], Any]
    num_bytes: int


class Hashes:
    """The part of the benchmark for one size of the tables.

    Args:
        ratio: the size of tables with a row for each id, divided by that of these tables.
    """

    CLAIM = (
        "Ghaemmaghami et al. 2022: of several maps, the one from the frequencies and the learned "
        "vectors of ids is best, and slightly better than hashing at equal memory."
    )
    DATA = ("clusters", "criteo")

    def __init__(self, ratio: int) -> None:
        self._ratio = ratio

    def measure(self, task: Task, seed: int, settings: Settings, done: Done) -> Measured:
        """Trains every contender; the validation part chooses the number of epochs.

        Args:
            task: the data.
            seed: the seed of the weights, the order and the clusters.
            settings: of every training.
            done: contenders that are measured.

        Yields:
            The contender, and its `entropy` on the test part, its number of `epochs` and its
            `bytes`: the bytes of vectors, and 4 for each id of a map.
        """
        if all(contender in done for contender in CONTENDERS):
            return
        data = _data(task)
        budgets = [max(SMALL, n // self._ratio) for n in data.num_large]
        teacher = functools.partial(_teacher, task, seed, settings)
        for contender, make in CONTENDERS.items():
            if contender not in done:
                vectors = make(Setting(data, budgets, teacher, seed))
                found = train(model_of(data, UNITS, vectors.of, seed), data, seed, settings)
                yield contender, {**found, "bytes": float(vectors.num_bytes)}


@functools.lru_cache(maxsize=16)
def _data(task: Task) -> Data:
    return read(task)


@functools.lru_cache(maxsize=16)
def _teacher(task: Task, seed: int, settings: Settings) -> Teacher:
    data = _data(task)
    categories = layers.CategoryRows(len(data.num_large), min_count=1)
    counts = categories.new_counts()
    categories.count(counts, data.train.large)
    categories.adapt_from_counts(counts)
    table = embedding([n - 1 for n in categories.num_rows], TEACHER_UNITS)
    model = model_of(data, TEACHER_UNITS, lambda ids: table(categories(ids)), seed)
    train(model, data, seed, settings)
    return Teacher(counts, categories, table)


def _modulo(setting: Setting) -> Vectors:
    def vectors(ids: Any) -> Any:
        return embedding(setting.budgets, UNITS)(ids)

    return Vectors(vectors, _ROW * sum(setting.budgets))


def _double(setting: Setting) -> Vectors:
    """The sum of the vectors of two hashes, which are in the same table (Zhang et al. 2020)."""

    def vectors(ids: Any) -> Any:
        table = embedding(setting.budgets, UNITS)
        return tf.keras.layers.Add()([table(ids), table(_Rehashed()(ids))])

    return Vectors(vectors, _ROW * sum(setting.budgets))


def _quotient_remainder(setting: Setting) -> Vectors:
    """The products of the vectors of a quotient and of a remainder (Shi et al. 2020)."""
    remainders = [(n + 1) // 2 for n in setting.budgets]
    quotients = [n // 2 for n in setting.budgets]

    def vectors(ids: Any) -> Any:
        first = embedding(remainders, UNITS)(ids)
        second = embedding(quotients, UNITS, mean=1.0)(_Quotient(remainders)(ids))
        return tf.keras.layers.Multiply()([first, second])

    return Vectors(vectors, _ROW * sum(setting.budgets))


def _learned(setting: Setting, own_share: float, cluster_share: float) -> Vectors:
    teacher = setting.teacher()
    plans = [
        research.plan_hash(_ROW * rows, UNITS, ids, own_share, cluster_share)
        for rows, ids in zip(setting.budgets, teacher.counts.distinct(MIN_COUNT), strict=True)
    ]
    learned = research.LearnedHash(len(plans))
    learned.learn(teacher.counts, teacher.categories, teacher.embedding, plans, setting.seed)

    def vectors(ids: Any) -> Any:
        return embedding([n - 1 for n in learned.num_rows], UNITS)(learned(ids))

    return Vectors(vectors, sum(plan.num_bytes(UNITS) for plan in plans))


CONTENDERS: dict[str, Callable[[Setting], Vectors]] = {
    "modulo": _modulo,
    "double hash": _double,
    "quotient-remainder": _quotient_remainder,
    "frequency": functools.partial(_learned, own_share=0.5, cluster_share=0.0),
    "embedding": functools.partial(_learned, own_share=0.0, cluster_share=0.9),
    "frequency + embedding": functools.partial(_learned, own_share=0.5, cluster_share=0.4),
}


class _Rehashed(tf.keras.layers.Layer):
    """Another hash of each id; -1 stays."""

    def call(self, ids: Any) -> Any:
        """[B, F] to [B, F]."""
        return tf.where(ids < 0, ids, ops.hash_ids(ids, 62, 1))


class _Quotient(tf.keras.layers.Layer):
    """The ids divided by the rows of their fields; -1 stays."""

    def __init__(self, num_rows: list[int]) -> None:
        super().__init__()
        self._num_rows = num_rows

    def call(self, ids: Any) -> Any:
        """[B, F] to [B, F]."""
        return tf.where(ids < 0, ids, ids // tf.constant(self._num_rows, tf.int64))
