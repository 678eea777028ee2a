"""DeepFM on fields.

fields ──┬─ linear ────────────────────────────┐
         └─ vectors ─┬─ products of all pairs ─(+)─ sigmoid
                     └─ dense net ─────────────┘

Boosted trees of the numbers and of statistics of the categories can be averaged with the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._options import HashedNetOptions, shares
from twml_ops.models._tree_logits import wanted

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(HashedNetOptions)
def deepfm(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    hidden: Sequence[int] = (64, 32),
    crosses: Sequence[str] | None = None,
    trees: bool | None = False,
    tree_ensembles: int | None = None,
    tree_share: float | None = None,
    **options: Unpack[HashedNetOptions],
) -> tf.keras.Model:
    """Builds a DeepFM.

    The logit is the sum of that of a factorization machine, see `fm`, and of a dense net on the
    same vectors and on the ranks of the numbers. See Guo et al., "DeepFM: A Factorization-Machine
    based Neural Network for CTR Prediction", IJCAI 2017.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", or "keyed_fields" for trees, usually the training
            data, from which quantiles, frequent categories and the initial bias are computed in one
            pass.
        hidden: widths of the dense layers.
        crosses: crosses of categorical features whose statistics the trees have, see `dcn`.
        trees: whether boosted trees are averaged with the logit in inference, as in `dcn`: of the
            numbers and of the statistics of the categories and of their crosses, which only the
            trees have, so that the vectors of the net learn something else. None: if LightGBM is
            installed and there are row keys.
        tree_ensembles: number of ensembles of trees, see `dcn`.
        tree_share: weight of their logit in the mean, see `dcn`.
        **options: see `HashedNetOptions`.

    Returns:
        An uncompiled model: features in the layout "fields", or "keyed_fields" if there are trees,
        → probabilities [B, 1]; of several labels a dict of them.

    Raises:
        ImportError: `trees` is true, and LightGBM is not installed.
        ValueError: the schema has fewer than two fields, a cross names features that it does not
            have, or `tree_share` is not in [0, 1].
    """
    with_trees = wanted(trees, dataset)
    fields = Fields(
        schema, dataset, options, statistics=with_trees, in_numbers=False, crosses=crosses
    )
    vectors = fields.vectors()
    deep = dense_net(fields.deep_input(vectors), hidden, options["dropout"])
    terms = [*fields.linear(), fields.pairs(vectors), fields.logits(deep)]
    others = fields.tree_logits(dataset, tree_ensembles) if with_trees else []
    return fields.model("deepfm", terms, others, tree_share)
