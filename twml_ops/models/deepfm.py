"""DeepFM on fields.

fields ──┬─ linear ────────────────────────────┐
         └─ vectors ─┬─ products of all pairs ─(+)─ sigmoid
                     └─ dense net ─────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._options import HashedNetOptions, shares

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(HashedNetOptions)
def deepfm(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    hidden: Sequence[int] = (64, 32),
    **options: Unpack[HashedNetOptions],
) -> tf.keras.Model:
    """Builds a DeepFM.

    The logit is the sum of that of a factorization machine, see `fm`, and of a dense net on the
    same vectors and on the ranks of the numbers. See Guo et al., "DeepFM: A Factorization-Machine
    based Neural Network for CTR Prediction", IJCAI 2017.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        hidden: widths of the dense layers.
        **options: see `HashedNetOptions`.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has fewer than two fields.
    """
    fields = Fields(schema, dataset, options)
    vectors = fields.vectors()
    deep = dense_net(fields.deep_input(vectors), hidden, options["dropout"])
    terms = [*fields.linear(), fields.pairs(vectors), fields.logits(deep)]
    return fields.model("deepfm", terms)
