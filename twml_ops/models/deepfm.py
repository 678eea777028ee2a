"""DeepFM on fields.

fields ──┬─ linear ────────────────────────────┐
         └─ vectors ─┬─ products of all pairs ─(+)─ sigmoid
                     └─ dense net ─────────────┘

Boosted trees of the numbers and of statistics of the categories can be averaged with the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._tree_logits import wanted


@takes("keyed_fields")
def deepfm(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 8,
    field_units: Sequence[str] | None = None,
    hidden: Sequence[int] = (64, 32),
    dropout: float = 0.2,
    embedding_dropout: float = 0.2,
    l2: float = 0.1,
    linear_l2: float = 0.01,
    num_bins: int = 20,
    min_count: int = 2,
    max_rows: int = 1 << 18,
    trees: bool | None = False,
    crosses: Sequence[str] | None = None,
    tree_ensembles: int | None = None,
    stddev: float = 0.01,
    learned_hash: str | None = None,
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
        units: width D of the vectors.
        field_units: widths of single fields, such as city:4,device:2, or auto: the fourth root of
            the number of rows of a field, at most `units`. The vectors of each field are then
            multiplied by a matrix of the field.
        hidden: widths of the dense layers.
        dropout: share of the outputs of the dense layers that is dropped in training.
        embedding_dropout: share of the components of the vectors that is dropped in training.
        l2: strength of the L2 regularization of the vectors that a batch looks up.
        linear_l2: the same for the weights of the linear part.
        num_bins: largest number of buckets of a continuous field.
        min_count: smallest number of occurrences of a category with a row of its own; all rarer
            categories of a field share one.
        max_rows: largest number of rows of a field, for its most frequent categories.
        trees: whether boosted trees are averaged with the logit in inference, as in `dcn`: of the
            numbers and of the statistics of the categories and of their crosses, which only the
            trees have, so that the vectors of the net learn something else. None: if LightGBM is
            installed and there are row keys.
        crosses: crosses of categorical features whose statistics the trees have, see `dcn`.
        tree_ensembles: number of ensembles of trees, see `dcn`.
        stddev: standard deviation of the initial vectors.
        learned_hash: file that `twml-ops learn-hash` wrote for the features, which gives rows to
            the categories instead of `min_count` and `max_rows`; None: these do.

    Returns:
        An uncompiled model: features in the layout "fields", or "keyed_fields" if there are trees,
        → probabilities [B, 1]; of several labels a dict of them.

    Raises:
        ImportError: `trees` is true, and LightGBM is not installed.
        ValueError: the schema has fewer than two fields, or a cross names features that it does not
            have.
    """
    with_trees = wanted(trees, dataset)
    fields = Fields(
        schema,
        dataset,
        num_bins=num_bins,
        min_count=min_count,
        max_rows=max_rows,
        statistics=with_trees,
        in_numbers=False,
        crosses=crosses,
        learned_hash=learned_hash,
    )
    vectors = fields.vectors(units, stddev=stddev, l2=l2, field_units=field_units)
    deep = dense_net(fields.deep_input(vectors, embedding_dropout), hidden, dropout)
    terms = [*fields.linear(l2=linear_l2), fields.pairs(vectors), fields.logits(deep)]
    others = fields.tree_logits(dataset, tree_ensembles) if with_trees else []
    return fields.model("deepfm", terms, others)
