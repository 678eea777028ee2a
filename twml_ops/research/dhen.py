"""The Deep and Hierarchical Ensemble Network (DHEN) on fields.

numbers ── dense net ── vector ──┬─ block ─ block ─ dense net ──(+)─ sigmoid
fields ──┬─ vectors ─────────────┘                              │
         └─ linear ─────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, concatenated, dense_net
from twml_ops.models._layouts import takes
from twml_ops.research.dhen_block import DHENBlock, Ensemble


@takes("fields")
def dhen(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 8,
    field_units: Sequence[str] | None = None,
    modules: Sequence[str] = ("dot", "attention", "linear", "cross", "convolution"),
    depth: int = 2,
    outputs: int = 8,
    ensemble: str = "concat",
    bottom: Sequence[int] = (64,),
    hidden: Sequence[int] = (64,),
    dropout: float = 0.2,
    embedding_dropout: float = 0.2,
    l2: float = 0.1,
    linear_l2: float = 0.01,
    num_bins: int = 20,
    min_count: int = 2,
    max_rows: int | Sequence[int] = 1 << 18,
    stddev: float = 0.1,
    learned_hash: str | None = None,
) -> tf.keras.Model:
    """Builds a DHEN.

    The vectors of the fields, and a vector that a dense net makes of the numbers, go through
    `depth` blocks (`research.DHENBlock`), each of which joins the outputs of all `modules`. A dense
    net on the vectors of the last block gives the logit. See Zhang et al., "DHEN: A Deep and
    Hierarchical Ensemble Network for Large-Scale Click-Through Rate Prediction", 2022. Unlike
    there, the logit of `logistic` is added.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        units: width D of the vectors.
        field_units: widths of single fields, such as city:4,device:2, or auto: the fourth root of
            the number of rows of a field, at most `units`. The vectors of each field are then
            multiplied by a matrix of the field.
        modules: the interactions of each block: some of dot, attention, linear, cross and
            convolution.
        depth: number of blocks, positive.
        outputs: number of vectors of each interaction.
        ensemble: how a block joins them: concat, sum or weighted; or parallel: each interaction is
            a block by itself, with a shortcut and a normalization of its own, side by side.
        bottom: widths of the dense layers on the numbers, before one of width `units`.
        hidden: widths of the dense layers.
        dropout: share of the outputs of the dense layers that is dropped in training.
        embedding_dropout: share of the components of the vectors that is dropped in training.
        l2: strength of the L2 regularization of the vectors that a batch looks up.
        linear_l2: the same for the weights of the linear part.
        num_bins: largest number of buckets of a continuous field.
        min_count: smallest number of occurrences of a category with a row of its own; all rarer
            categories of a field share one.
        max_rows: largest number of rows of a field, for its most frequent categories; an integer,
            or one for each categorical field, bags last.
        stddev: standard deviation of the initial vectors.
        learned_hash: file that `twml-ops learn-hash` wrote for the features, which gives rows to
            the categories instead of `min_count` and `max_rows`; None: these do.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has fewer than two fields, or an option is out of range.
    """
    if depth < 1:
        raise ValueError(f"depth must be positive, got {depth}")
    fields = Fields(
        schema,
        dataset,
        num_bins=num_bins,
        min_count=min_count,
        max_rows=max_rows,
        learned_hash=learned_hash,
    )

    def interact(x: Any) -> Any:
        for i in range(depth):
            if ensemble == "parallel":
                made = [DHENBlock([m], outputs, name=f"{m}_{i}")(x) for m in modules]
                x = concatenated(made, f"block_{i}")
            else:
                joined = cast(Ensemble, ensemble)  # the block checks it
                x = DHENBlock(modules, outputs, joined, name=f"block_{i}")(x)
        return x

    return assembled(
        fields,
        fields.vectors(units, stddev=stddev, l2=l2, field_units=field_units),
        interact,
        lambda x: dense_net(x, hidden, dropout),
        bottom=bottom,
        embedding_dropout=embedding_dropout,
        linear_l2=linear_l2,
    )


def assembled(
    fields: Fields,
    vectors: Any,
    interact: Callable[[Any], Any],
    dense: Callable[[Any], Any],
    *,
    bottom: Sequence[int],
    embedding_dropout: float,
    linear_l2: float,
) -> tf.keras.Model:
    """Joins the parts of the model; `architecture_search` gives others than `dhen`.

    Args:
        fields: the inputs.
        vectors: [B, F, D] of the fields.
        interact: from the vectors of fields and numbers to [B, any, D].
        dense: from these side by side, [B, any], to [B, any].
        bottom: as of `dhen`.
        embedding_dropout: as of `dhen`.
        linear_l2: as of `dhen`.

    Returns:
        The model.
    """
    x = tf.keras.layers.Dropout(embedding_dropout, name="embedding_dropout")(vectors)
    if fields.numbers is not None:
        units = int(vectors.shape[2])
        number = dense_net(fields.numbers, [*bottom, units], 0.0, name="bottom")
        number = tf.keras.layers.Reshape((1, units), name="bottom_field")(number)
        x = tf.keras.layers.Concatenate(axis=1, name="vectors")([number, x])
    x = tf.keras.layers.Flatten(name="flat")(interact(x))
    # The vectors are normalized, so that other weights would predict far from the base rate.
    deep = fields.logits(dense(x), initializer="zeros")
    return fields.model("dhen", [*fields.linear(l2=linear_l2), deep])
