"""Models for the features of a data schema. Each is a plain functional Keras model.

| name | model |
|---|---|
| `sparse_mlp` | wide and deep: a sparse linear layer and a small dense net (Cheng et al., 2016) |
| `dcn` | Deep & Cross Network, version 2 (Wang et al., 2021) |
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from twml_ops.models._layouts import layout_of, takes
from twml_ops.models.dcn import dcn
from twml_ops.models.hashed_ids import HashedIds
from twml_ops.models.sparse_mlp import sparse_mlp
from twml_ops.models.split_labels import SplitLabels

ModelBuilder = Callable[..., tf.keras.Model]

_MODELS: dict[str, ModelBuilder] = {"dcn": dcn, "sparse_mlp": sparse_mlp}

__all__ = [
    "HashedIds",
    "SplitLabels",
    "dcn",
    "get",
    "layout_of",
    "names",
    "sparse_mlp",
    "takes",
]


def names() -> list[str]:
    """The names of the models.

    Returns:
        The names that `get` accepts, sorted.
    """
    return sorted(_MODELS)


def get(name: str) -> ModelBuilder:
    """Looks up the builder of a model.

    Args:
        name: name of the model.

    Returns:
        `build(schema, dataset, **options)`, a function that returns an uncompiled model from the
        features of `schema`, a `twml_ops.data.Schema`, to probabilities [B, 1], or to a dict of
        them if the schema has several labels. Its input transforms are adapted on `dataset`,
        batches of (features, labels) or (features, labels, sample weights) in the layout
        `layout_of(build)`.

    Raises:
        ValueError: `name` is unknown.
    """
    if name not in _MODELS:
        raise ValueError(f"unknown model {name!r}: expected one of {', '.join(names())}")
    return _MODELS[name]
