"""Models for the features of a data schema. Each is a plain functional Keras model.

| name | model |
|---|---|
| `sparse_mlp` | wide and deep: a sparse linear layer and a small dense net (Cheng et al., 2016) |
| `logistic` | logistic regression |
| `fm` | factorization machine (Rendle, 2010) |
| `deepfm` | factorization machine and dense net (Guo et al., 2017) |
| `dlrm` | dot products of the vectors of fields, and a dense net (Naumov et al., 2019) |
| `dcn` | Deep & Cross Network, version 2 (Wang et al., 2021) |
| `dhen` | Deep and Hierarchical Ensemble Network (Zhang et al., 2022), of `twml_ops.research` |
| `shared_bottom` | several labels share a dense net (Caruana, 1997) |
| `mmoe` | several labels share a multi-gate mixture of experts (Ma et al., 2018) |

`sparse_mlp` takes batches in the layout "ragged", `dcn` in the layout "keyed_fields", and the
others in the layout "fields". In the last two, each column has vectors of its own. Each model
trains all labels of the schema. `ensemble` makes one model of several trained ones.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from twml_ops import _research
from twml_ops.data import Schema
from twml_ops.models._crosses import choose_crosses
from twml_ops.models._fields import MAX_MULTI_HOT
from twml_ops.models._labels import SplitLabels
from twml_ops.models._layouts import layout_of, takes
from twml_ops.models._options import HashedNetOptions, LinearOptions, NetOptions, VectorOptions
from twml_ops.models.bias import Bias
from twml_ops.models.dcn import dcn
from twml_ops.models.deepfm import deepfm
from twml_ops.models.dlrm import dlrm
from twml_ops.models.ensemble import ensemble, ensemble_members
from twml_ops.models.fm import fm
from twml_ops.models.front import Front, batches_of, divided, in_batches, keyed_batches
from twml_ops.models.hashed_ids import HashedIds
from twml_ops.models.logistic import logistic
from twml_ops.models.mean_logit import (
    MeanLogit,
    SigmoidOfMeanLogit,
    averaged_logits,
    weighted_mean,
)
from twml_ops.models.mmoe import mmoe
from twml_ops.models.new_categories import (
    EnlargedModel,
    EnlargedTable,
    enlarged_tables,
    with_new_categories,
)
from twml_ops.models.shared_bottom import shared_bottom
from twml_ops.models.sparse_mlp import sparse_mlp

ModelBuilder = Callable[..., tf.keras.Model]

_BUILDERS: tuple[ModelBuilder, ...] = (
    dcn,
    deepfm,
    dlrm,
    fm,
    logistic,
    mmoe,
    shared_bottom,
    sparse_mlp,
)
_MODELS = {build.__name__: build for build in _BUILDERS}

__all__ = [
    "Bias",
    "EnlargedModel",
    "EnlargedTable",
    "Front",
    "HashedIds",
    "HashedNetOptions",
    "LinearOptions",
    "MeanLogit",
    "NetOptions",
    "SigmoidOfMeanLogit",
    "SplitLabels",
    "VectorOptions",
    "averaged_logits",
    "batches_of",
    "choose_crosses",
    "dcn",
    "deepfm",
    "default_name",
    "divided",
    "dlrm",
    "enlarged_tables",
    "ensemble",
    "ensemble_members",
    "fm",
    "get",
    "in_batches",
    "keyed_batches",
    "layout_of",
    "logistic",
    "mmoe",
    "names",
    "shared_bottom",
    "sparse_mlp",
    "takes",
    "weighted_mean",
    "with_new_categories",
]


def names() -> list[str]:
    """The names of the models.

    Returns:
        The names that `get` accepts, sorted.
    """
    return sorted([*_MODELS, *_research.MODELS])


def default_name(schema: Schema) -> str:
    """The name of the model that suits the features.

    Args:
        schema: the features.

    Returns:
        "dcn" if there are numbers or categories, or few raw sparse features; otherwise
        "sparse_mlp".
    """
    columns = schema.continuous or schema.categorical
    return "dcn" if columns or schema.sparse_dim <= MAX_MULTI_HOT else "sparse_mlp"


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
    if name in _research.MODELS:
        build: ModelBuilder = getattr(_research.research(), name)
        return build
    if name not in _MODELS:
        raise ValueError(f"unknown model {name!r}: expected one of {', '.join(names())}")
    return _MODELS[name]


def __dir__() -> list[str]:
    return sorted(__all__)
