"""The Deep & Cross Network, version 2 (DCN-v2), on fields.

fields ──┬─ linear ─────────────────────────────────────────┐
         └─ vectors: x0 ──┬─ cross ─ cross ─┬─ logit ───────(+)─ sigmoid
                          └─ dense net ─────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import Cross
from twml_ops.models._fields import Fields, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._options import HashedNetOptions, shares
from twml_ops.models._tree_logits import wanted

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FULL_RANK = 1024  # largest width at which W has full rank
_RANK = 64


@takes("keyed_fields")
@shares(
    HashedNetOptions,
    units=2,
    dropout=0.5,
    embedding_dropout=0.5,
    l2=0.0,
    linear_l2=0.0,
    min_count=3,
    stddev=0.02,
)
def dcn(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    sparse_units: int | None = None,
    num_crosses: int = 2,
    rank: int | None = None,
    hidden: Sequence[int] = (64,),
    field_towers: Sequence[str] | None = None,
    tower_outputs: float | None = None,
    statistics: bool = True,
    crosses: Sequence[str] | None = None,
    trees: bool | None = None,
    tree_ensembles: int | None = None,
    tree_share: float | None = None,
    **options: Unpack[HashedNetOptions],
) -> tf.keras.Model:
    """Builds a Deep & Cross Network in its parallel form.

    x0 is the concatenation of the vectors of all fields, the ranks and logarithms of the numbers,
    and statistics of the categories: how often the label is positive (`layers.TargetStatistics`,
    out of fold in training) and how frequent they are (`layers.CountStatistics`). It is the input
    of `num_crosses` layers x ← x0 ⊙ (W x + b) + x and, in parallel, of a dense net. The logit is
    linear in both outputs, plus that of `logistic`. See Wang et al., "DCN V2: Improved Deep & Cross
    Network and Practical Lessons for Web-scale Learning to Rank Systems", WWW 2021. The vectors are
    narrow and the dropout, which the last `Cross` layer has as well, is strong, because the linear
    part models the effects of single features.
    Boosted trees, which find thresholds that a net finds late, are averaged with the net.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "keyed_fields", usually the training data, from which
            quantiles, frequent categories, statistics and the initial bias are computed in one
            pass.
        sparse_units: width of the vector of all raw sparse ids of a row; None: 32, or, of at most
            256 ids, their values.
        num_crosses: number of `Cross` layers; the result is a polynomial of degree
            `num_crosses` + 1.
        rank: rank of their matrices W; None: full rank, or 64 if x0 is wider than 1,024, so that
            their size does not grow with the square of the number of columns.
        hidden: widths of the dense layers.
        field_towers: the fields of each tower, as their names with `+` between them; every field is
            in one tower. The output of a `research.TowerModule` for each tower takes the place of
            the vectors of its fields in x0 (Luo et al., "Disaggregated Multi-Tower", MLSys 2024).
            None: no towers.
        tower_outputs: the size of the output of a tower, divided by the size of its vectors, above
            0 and at most 1; None: 1/4.
        statistics: whether x0 has the statistics of the categories.
        crosses: pairs and triples of categorical features that have statistics as well, each as the
            names of the features with `*` between them; empty: none. None: at most 24 are chosen,
            by their gain on a fifth of the data, whose labels are in no statistic of the search
            (`layers.choose_crosses`). `twml-ops train` uses its validation data instead.
        trees: whether boosted trees (`layers.BoostedTrees`) of the numbers, the statistics and at
            most 256 raw sparse ids are trained first, the mean of whose logit and that of the net
            is the logit in inference. They are left out if they gain less than 1 % on examples
            whose labels are neither in them nor in their columns. None: if LightGBM is installed
            and there are row keys.
        tree_ensembles: number of ensembles of trees, the mean of whose logits is used, from 1 to 5;
            each is trained without one of five folds of the examples, and the time of the training
            and of the predictions is proportional to their number. None: 3.
        tree_share: weight of the logit of the trees in the mean, from 0 to 1; None: 1/2, or what
            `twml-ops train` chooses by its validation data.
        **options: see `HashedNetOptions`.

    Returns:
        An uncompiled model: features in the layout "keyed_fields", or "fields" if there are no
        statistics, → probabilities [B, 1]; of several labels a dict of them. In inference the row
        keys are not used, and exports do not take them.

    Raises:
        ImportError: `trees` is true, and LightGBM is not installed.
        ValueError: the schema has no features, a cross names features that it does not have, or
            `field_towers` do not have every field once, or `tree_share` is not in [0, 1].
    """
    fields = Fields(schema, dataset, options, statistics=statistics, crosses=crosses)
    x0 = fields.flat_input(sparse_units, field_towers, tower_outputs)
    if rank is None and x0.shape[-1] > _FULL_RANK:
        rank = _RANK
    crossed = x0
    for i in range(num_crosses):
        crossed = Cross(rank, name=f"cross_{i}")(x0, crossed)
    crossed = tf.keras.layers.Dropout(options["dropout"], name="cross_dropout")(crossed)
    deep = dense_net(x0, hidden, options["dropout"])
    both = tf.keras.layers.Concatenate(name="crossed_and_deep")([crossed, deep])
    terms = [*fields.linear(), fields.logits(both)]
    others = fields.tree_logits(dataset, tree_ensembles) if wanted(trees, dataset) else []
    return fields.model("dcn", terms, others, tree_share)
