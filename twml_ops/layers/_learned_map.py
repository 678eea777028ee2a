"""Which row each id gets: its own, or that of a cluster of ids with similar vectors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twml_ops.layers._id_row_map import Ints

BYTES_PER_ID = 4
"""What the map is charged for an id in the comparison of equal memory."""
_FLOAT = 4


class HashPlan(NamedTuple):
    """The rows of a field.

    Attributes:
        shared: rows that several ids share, at least 1; they come first.
        own: rows of one id each, for the most frequent ids; they follow.
        clustered: how many of the next most frequent ids are assigned to shared rows by their
            vectors. All other ids are hashed to the shared rows.
    """

    shared: int
    own: int
    clustered: int

    @property
    def num_rows(self) -> int:
        """The rows of `FieldEmbedding`: one more than those of ids, for missing values."""
        return 1 + self.shared + self.own

    def num_bytes(self, units: int) -> int:
        """Bytes of the rows of ids, with float32 vectors, and 4 for each id of the map.

        Args:
            units: width of the vectors.
        """
        rows = _FLOAT * units * (self.shared + self.own)
        return rows + BYTES_PER_ID * (self.own + self.clustered)


def plan_hash(
    num_bytes: int, units: int, num_ids: int, own_share: float = 0.5, map_share: float = 0.25
) -> HashPlan:
    """Divides the memory of a field.

    Args:
        num_bytes: of the vectors (float32), and of the map, which is charged 4 bytes for each id.
        units: width of the vectors, positive.
        num_ids: distinct ids of the field.
        own_share: share of the memory of the rows that is given to ids with a row of their own, in
            [0, 1]. With 0 and a map, there are only clusters.
        map_share: share of the memory that is given to the map of ids that share rows, in [0, 1].
            With 0, there are no clusters: ids without a row of their own are hashed.

    Returns:
        The largest plan that needs at most `num_bytes`.

    Raises:
        ValueError: a share out of its range, or too little memory for one row.
    """
    for name, share in (("own_share", own_share), ("map_share", map_share)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {share!r}")
    row = _FLOAT * units
    if num_bytes < row or units < 1:
        raise ValueError(
            f"num_bytes must be at least 4 * units, the size of one row, and units positive, got "
            f"{num_bytes} and {units}"
        )
    if num_ids * (row + BYTES_PER_ID) + row <= num_bytes:
        return HashPlan(1, num_ids, 0)
    clustered = int(map_share * (num_bytes - row) / BYTES_PER_ID)
    rest = num_bytes - row - BYTES_PER_ID * min(clustered, num_ids)
    own = min(num_ids, int(own_share * rest / (row + BYTES_PER_ID)))
    clustered = min(clustered, num_ids - own)
    used = own * (row + BYTES_PER_ID) + clustered * BYTES_PER_ID
    return HashPlan((num_bytes - used) // row, own, clustered)


def learned_rows(
    counts: Ints, vectors: npt.NDArray[Any], plan: HashPlan, seed: int
) -> tuple[Ints, Ints]:
    """Assigns the most frequent ids of a field to rows.

    Args:
        counts: int64 [U], occurrences of each id.
        vectors: [U, D], of a model in which every id had a vector of its own.
        plan: the rows of the field.
        seed: of the clusters.

    Returns:
        (positions of the ids that are in the map, their rows), int64 [own + clustered] each.

    Raises:
        ImportError: scikit-learn is missing, and there are clusters.
    """
    order = np.argsort(-counts, kind="stable")
    own = order[: plan.own]
    clustered = order[plan.own : plan.own + plan.clustered]
    rows = _clusters(vectors[clustered], counts[clustered], plan.shared, seed)
    return (
        np.concatenate([own, clustered]),
        np.concatenate([plan.shared + np.arange(len(own)), rows]).astype(np.int64),
    )


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
