"""The learned hash of a trained model on fields."""

from __future__ import annotations

import tensorflow as tf

from twml_ops import _keras
from twml_ops.data import Schema
from twml_ops.layers import CategoryRows, FieldEmbedding
from twml_ops.models._adapt_fields import ids_by_field
from twml_ops.research._learned_map import plan_hash
from twml_ops.research.learned_hash import LearnedHash


def learn_hash(
    model: tf.keras.Model,
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    ratio: float,
    units: int,
    own_share: float = 0.5,
    cluster_share: float = 0.4,
    min_count: int = 20,
    seed: int = 0,
) -> LearnedHash:
    """Clusters the vectors of the categories of a model.

    Args:
        model: a trained model of `twml_ops.models` whose layers `categories` and `embedding` give a
            vector to each category, for example `dlrm` with `min_count=1`.
        schema: its features.
        dataset: the training data in batches in the layout "fields" or "keyed_fields", read once to
            count the categories.
        ratio: the size of tables with a row for each category, divided by the size to reach,
            at least 1.
        units: width of the vectors of the model that will use the hash.
        own_share: see `research.plan_hash`.
        cluster_share: see `research.plan_hash`.
        min_count: occurrences from which a category is in a cluster. The vectors of rarer ones
            depend too much on their own labels: clusters of them repeat these labels, and a model
            that is trained on the same data overfits.
        seed: the seed of the clusters.

    Returns:
        A layer for the categorical fields, then the bags.

    Raises:
        ImportError: scikit-learn is missing.
        ValueError: the model has no such layers, or an argument is out of range.
    """
    if not ratio >= 1:
        raise ValueError(f"ratio must be at least 1, got {ratio!r}")
    of_name = {layer.name: layer for layer in _keras.all_layers(model)}
    categories, embedding = of_name.get("categories"), of_name.get("embedding")
    if not isinstance(categories, CategoryRows) or not isinstance(embedding, FieldEmbedding):
        raise ValueError(
            "model must have the layers categories (CategoryRows) and embedding (FieldEmbedding) "
            "of a model on fields with categories"
        )
    counts = categories.new_counts()
    for features, *_ in dataset:
        for field, ids in enumerate(ids_by_field(schema, features)):
            counts.update(field, ids)
    plans = [
        plan_hash(max(1, int(ids / ratio)) * 4 * units, units, frequent, own_share, cluster_share)
        for ids, frequent in zip(counts.distinct(), counts.distinct(min_count), strict=True)
    ]
    learned = LearnedHash(categories.num_fields, categories.num_bags)
    learned.learn(counts, categories, embedding, plans, seed)
    return learned
