"""Ready models, by name. Each is a plain functional Keras model: read it, copy it, change it."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from twml_ops.models.dcn import dcn
from twml_ops.models.hashed_ids import HashedIds
from twml_ops.models.sparse_mlp import sparse_mlp

Build = Callable[..., tf.keras.Model]

_MODELS: dict[str, Build] = {"dcn": dcn, "sparse_mlp": sparse_mlp}

__all__ = ["HashedIds", "dcn", "get", "names", "sparse_mlp"]


def names() -> list[str]:
    """The names `get` knows."""
    return sorted(_MODELS)


def get(name: str) -> Build:
    """The builder of the model `name`.

    Returns:
        `build(schema, dataset, **options)`: an uncompiled model from the features of `schema`, a
        `twml_ops.data.Schema`, to probabilities [B, 1], its input transforms adapted on
        `dataset`, batches of (features, labels).

    Raises:
        ValueError: there is no such model.
    """
    if name not in _MODELS:
        raise ValueError(f"unknown model {name!r}: expected one of {', '.join(names())}")
    return _MODELS[name]
