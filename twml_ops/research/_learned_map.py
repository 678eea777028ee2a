"""The map from ids to rows: an id has its own row, or the row of a cluster of similar ids."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twml_ops.layers._id_row_map import Ints

BYTES_PER_ID = 4
"""The bytes that an id of the map counts in the comparison of equal memory."""
_FLOAT = 4


class HashPlan(NamedTuple):
    """The rows of a field, in the order in which they are in its table.

    Attributes:
        hashed: rows to which the ids are hashed that are not in the map, at least 1.
        clusters: rows of ids with similar vectors.
        own: rows of one id each, for the most frequent ids.
        clustered: how many of the next most frequent ids are assigned to clusters.
    """

    hashed: int
    clusters: int
    own: int
    clustered: int

    def num_rows(self) -> int:
        """Counts the rows.

        Returns:
            Their number. `FieldEmbedding` has one more, for missing values.
        """
        return self.hashed + self.clusters + self.own

    def num_bytes(self, units: int) -> int:
        """Computes the memory.

        Args:
            units: width of the vectors.

        Returns:
            Bytes of the rows, with float32 vectors, and 4 for each id of the map.
        """
        return _FLOAT * units * self.num_rows() + BYTES_PER_ID * (self.own + self.clustered)


def plan_hash(
    num_bytes: int, units: int, num_ids: int, own_share: float = 0.5, cluster_share: float = 0.4
) -> HashPlan:
    """Divides the memory of a field.

    The ids of clusters are charged to the memory of the clusters, of which they take at most a
    half.

    Args:
        num_bytes: the number of bytes of the vectors (float32), and of the map, which is charged 4
            bytes for each id.
        units: width of the vectors, positive.
        num_ids: ids that are frequent enough to be in the map.
        own_share: share of the memory for ids with a row of their own, in [0, 1]. With 0, there are
            none.
        cluster_share: share of the memory for clusters, in [0, 1 - own_share]. With 0, there are
            none.

    Returns:
        A plan that needs at most `num_bytes`. If all ids can have a row of their own, they have.

    Raises:
        ValueError: a share out of its range, or too little memory for one row.
    """
    if not (own_share >= 0 and cluster_share >= 0 and own_share + cluster_share <= 1):
        raise ValueError(
            "own_share and cluster_share must not be negative, and their sum must be at most 1, "
            f"got {own_share!r} and {cluster_share!r}"
        )
    row = _FLOAT * units
    if units < 1 or num_bytes < row:
        raise ValueError(
            "units must be positive, and num_bytes at least 4 * units, the size of one row, got "
            f"{units} and {num_bytes}"
        )
    free = num_bytes - row  # there is always a row to hash to
    if num_ids * (row + BYTES_PER_ID) <= free:
        own, clusters, clustered = num_ids, 0, 0
    else:
        own = min(num_ids, int(own_share * free / (row + BYTES_PER_ID)))
        memory = int(cluster_share * free)
        clustered = min(num_ids - own, memory // 2 // BYTES_PER_ID)
        clusters = min(clustered, (memory - clustered * BYTES_PER_ID) // row)
        clustered = clustered if clusters else 0
    used = (own + clusters) * row + (own + clustered) * BYTES_PER_ID
    return HashPlan((num_bytes - used) // row, clusters, own, clustered)


def learned_rows(
    counts: Ints, vectors: npt.NDArray[Any], plan: HashPlan, seed: int
) -> tuple[Ints, Ints]:
    """Assigns the most frequent ids of a field to rows.

    Args:
        counts: int64 [U], occurrences of each id.
        vectors: [U, D], of a model in which every id had a vector of its own.
        plan: the rows of the field.
        seed: the seed of the clusters.

    Returns:
        (positions of the ids that are in the map, their rows), int64 [own + clustered] each.

    Raises:
        ImportError: scikit-learn is missing, and there are clusters.
    """
    order = np.argsort(-counts, kind="stable")
    own = order[: plan.own]
    clustered = order[plan.own : plan.own + plan.clustered]
    cluster = _clusters(vectors[clustered], counts[clustered], plan.clusters, seed)
    rows = plan.hashed + np.concatenate([plan.clusters + np.arange(len(own)), cluster])
    return np.concatenate([own, clustered]), rows.astype(np.int64)


def _clusters(vectors: npt.NDArray[Any], weights: Ints, clusters: int, seed: int) -> Ints:
    """The cluster of each vector: k-means (MacQueen 1967) on batches (Sculley 2010)."""
    if len(vectors) <= clusters:
        return np.arange(len(vectors))
    try:
        from sklearn.cluster import MiniBatchKMeans
    except ImportError as e:
        raise ImportError(
            "LearnedHash.learn needs scikit-learn (the learned layer does not): "
            'pip install "twml_ops[calibrate]"'
        ) from e
    size = 1024 * math.ceil(clusters / 1024)
    kmeans = MiniBatchKMeans(
        clusters, batch_size=size, n_init=1, random_state=seed, reassignment_ratio=0.0
    )
    return np.asarray(kmeans.fit_predict(vectors, sample_weight=weights), np.int64)
