"""A hash of categories that is learned: similar ids share a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops import placement
from twml_ops._category_hash import id_keys
from twml_ops._keras import serializable
from twml_ops.layers._id_row_map import IdCounts, Ints
from twml_ops.layers.category_rows import CategoryRows
from twml_ops.layers.field_embedding import FieldEmbedding
from twml_ops.ops.hash import hash_keys
from twml_ops.research._learned_map import HashPlan, learned_rows


@serializable
class LearnedHash(CategoryRows):
    """Replaces ids by rows of small tables, so that ids that collide have similar meanings.

    The most frequent ids of a field have a row each. The next ones are assigned to the clusters of
    the vectors that a model learned in which every id had a vector of its own; a cluster is a row.
    All other ids, and those that were not in the data, are hashed to rows of their own kind. A
    missing value (a negative id) stays -1. `learn` computes this map, which is fixed afterwards.
    `FieldEmbedding(hash.num_rows, units)` takes the rows, and is trained anew. See Ghaemmaghami et
    al., "Learning to Collide: Recommendation System Model Compression with Learned Hash Functions",
    2022.

    The state survives `.keras` files, checkpoints, SavedModels and scorers. It is 16 bytes for each
    id of the map. The layer consists of stock TensorFlow ops in an export.

    Args:
        num_fields: number of fields: the columns of the matrix of ids, then the bags.
        num_bags: how many of the fields are bags, at the end.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range.
    """

    state_names: ClassVar[tuple[str, ...]] = ("keys", "rows", "hashed", "sizes")

    def __init__(self, num_fields: int, num_bags: int = 0, **kwargs: Any) -> None:
        super().__init__(num_fields, num_bags=num_bags, **kwargs)

    @property
    def num_rows(self) -> list[int]:
        """The rows of each field, as `FieldEmbedding` takes them, with that of missing values."""
        self._check_adapted()
        return [int(n) + 1 for n in self._hashed.numpy() + self._sizes.numpy()]

    def learn(
        self,
        counts: IdCounts,
        categories: CategoryRows,
        embedding: FieldEmbedding,
        plans: Sequence[HashPlan],
        seed: int = 0,
    ) -> None:
        """Computes the map; one of an earlier call is dropped.

        Args:
            counts: how often the ids occurred, made by `new_counts` of a layer with as many fields.
            categories: what gave the ids rows in the model whose vectors are used, in general with
                `min_count=1`. Ids without a row have the vector of the row that they share.
            embedding: the vectors, trained, of one width. Its first fields are the fields of
                `categories`, and its last ones the bags.
            plans: the rows of each field, for example of `plan_hash`.
            seed: the seed of the clusters.

        Raises:
            ImportError: scikit-learn is missing.
            ValueError: arguments of another number of fields, a plan without hashed rows, or an
                embedding of several widths. The map is unchanged.
        """
        fields = self.num_fields
        given = (counts.num_fields, categories.num_fields, len(plans))
        if given != (fields,) * 3:
            raise ValueError(
                f"counts, categories and plans must be of {fields} fields, got {given}"
            )
        if any(plan.hashed < 1 or min(plan) < 0 for plan in plans):
            raise ValueError(f"plans must have at least one hashed row of each field, got {plans}")
        vectors = _vectors(categories, embedding)
        state = counts.state()
        keys, rows = [np.array([-1], np.int64)], [np.zeros(1, np.int64)]
        sizes = []
        for field, plan in enumerate(plans):
            mine = state["fields"] == field
            own_keys, number = state["keys"][mine], state["counts"][mine]
            found = learned_rows(number, vectors(field, own_keys), plan, seed)
            keys.append(own_keys[found[0]])
            rows.append(1 + found[1])  # 0 stands for ids that are not in the map
            sizes.append(plan.clusters + plan.own)
        joined = np.concatenate(keys)
        order = np.argsort(joined)
        hashed = np.array([plan.hashed for plan in plans], np.int64)
        new = joined[order], np.concatenate(rows)[order], hashed, np.array(sizes, np.int64)
        for variable, value in zip(self.state_variables, new, strict=True):
            variable.assign(value)

    def adapt_from_counts(self, *counts: IdCounts) -> None:
        """Refused: counts alone do not determine the map.

        Args:
            *counts: not used.

        Raises:
            ValueError: always.
        """
        del counts
        raise ValueError(f"{type(self).__name__} '{self.name}' is not adapted to data: call learn")

    def extend_from_counts(self, *counts: IdCounts) -> None:
        """Changes nothing, as the map is fixed: ids that have become frequent stay hashed.

        Args:
            *counts: as of `CategoryRows`.

        Raises:
            ValueError: there is no map.
        """
        del counts
        self._check_adapted()

    def _rows_of(self, ids: Any, fields: Any, known: tf.Tensor) -> tf.Tensor:
        numbers = super()._rows_of(ids, fields, known)  # from 1; 0: the id is not in the map
        keys = id_keys(tf.cast(ids, tf.int64), fields, hash_keys)
        hashed = tf.math.floormod(keys, tf.gather(self._hashed.read_value(), fields))
        return tf.where(numbers == 0, hashed, tf.maximum(numbers - 1, -1))

    @property
    def _not_adapted(self) -> str:
        return f"{type(self).__name__} '{self.name}' has no map: call learn"

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        for name in ("min_count", "max_rows"):
            del config[name]
        return config


def _vectors(
    categories: CategoryRows, embedding: FieldEmbedding
) -> Callable[[int, Ints], npt.NDArray[Any]]:
    """A function of a field and keys of its ids, whose values are their vectors [U, units]."""
    if len(embedding.tables) != 1:
        raise ValueError(f"embedding must have vectors of one width, got units = {embedding.units}")
    (table,) = embedding.tables
    values = np.asarray(placement.placement_of(table.variable).read(table.variable), np.float32)
    known, rows = (v.numpy() for v in categories.state_variables[:2])
    single = categories.num_fields - categories.num_bags
    firsts = [first for first, _ in table.ranges]

    def vectors(field: int, keys: Ints) -> npt.NDArray[Any]:
        first = firsts[field if field < single else field - categories.num_fields]
        position = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        row = np.where(known[position] == keys, rows[position], 0)
        return np.asarray(values[first + 1 + row])  # the first row is that of missing values

    return vectors
