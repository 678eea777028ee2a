"""The Deep and Hierarchical Ensemble Network (DHEN) on fields.

numbers ── dense net ── vector ──┬─ block ─ block ─ dense net ──(+)─ sigmoid
fields ──┬─ vectors ─────────────┘                              │
         └─ linear ─────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, concatenated, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._options import HashedNetOptions, shares
from twml_ops.research.dhen_block import DHENBlock, Ensemble

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(HashedNetOptions, stddev=0.1)
def dhen(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    modules: Sequence[str] = ("dot", "attention", "linear", "cross", "convolution"),
    depth: int = 2,
    outputs: int = 8,
    ensemble: str = "concat",
    bottom: Sequence[int] = (64,),
    hidden: Sequence[int] = (64,),
    **options: Unpack[HashedNetOptions],
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
        modules: the interactions of each block: some of dot, attention, linear, cross and
            convolution.
        depth: number of blocks, positive.
        outputs: number of vectors of each interaction.
        ensemble: how a block joins them: concat, sum or weighted; or parallel: each interaction is
            a block by itself, with a shortcut and a normalization of its own, side by side.
        bottom: widths of the dense layers on the numbers, before one of width `units`.
        hidden: widths of the dense layers.
        **options: see `HashedNetOptions`.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has fewer than two fields, or an option is out of range.
    """
    if depth < 1:
        raise ValueError(f"depth must be positive, got {depth}")
    fields = Fields(schema, dataset, options)

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
        fields.vectors(),
        interact,
        lambda x: dense_net(x, hidden, options["dropout"]),
        bottom=bottom,
    )


def assembled(
    fields: Fields,
    vectors: Any,
    interact: Callable[[Any], Any],
    dense: Callable[[Any], Any],
    *,
    bottom: Sequence[int],
) -> tf.keras.Model:
    """Joins the parts of the model; `architecture_search` gives others than `dhen`.

    Args:
        fields: the inputs.
        vectors: [B, F, D] of the fields.
        interact: from the vectors of fields and numbers to [B, any, D].
        dense: from these side by side, [B, any], to [B, any].
        bottom: as of `dhen`.

    Returns:
        The model.
    """
    x = fields.dropped(vectors)
    if fields.numbers is not None:
        units = int(vectors.shape[2])
        number = dense_net(fields.numbers, [*bottom, units], 0.0, name="bottom")
        number = tf.keras.layers.Reshape((1, units), name="bottom_field")(number)
        x = tf.keras.layers.Concatenate(axis=1, name="vectors")([number, x])
    x = tf.keras.layers.Flatten(name="flat")(interact(x))
    # The vectors are normalized, so that other weights would predict far from the base rate.
    deep = fields.logits(dense(x), initializer="zeros")
    return fields.model("dhen", [*fields.linear(), deep])
