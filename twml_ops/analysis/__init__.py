"""Analysis of models and data: importance, drift, weight norms, lift, scores, accesses to tables.

The commands `twml-ops train`, `evaluate` and `explain` print the results of these functions:

| function | result |
|---|---|
| `score` | predictions of a model for a data set, as `Scores` |
| `log_loss`, `calibration_error` | quality of predicted probabilities |
| `lift_table` | positive rate by score, from the highest tenth of the examples to the lowest |
| `permutation_importance` | increase of the log loss when a feature is permuted over the rows |
| `weight_norms` | norms of the table rows that the entries of each feature read |
| `Profile` | coverage and histograms of each feature of a data set, in bounded memory |
| `population_stability` | distance between the histograms of a feature in two data sets |
| `leaking_features` | features that alone have an area under the ROC curve near 1 |
| `TableAccesses` | how often the rows of a table are read, and hit rates by size of a cache |
| `explain_features` | importance, weight norm, coverage and drift of each feature |

Features are dictionaries of ragged tensors, as the sources of `twml_ops.data` return them:
`continuous_ids` and `continuous_values`, `categorical_ids`, `sparse_ids` and `sparse_values`. A
`twml_ops.data.Schema` has their names.
"""

from twml_ops.analysis.explanation import (
    Explanation,
    FeatureSummary,
    explain_features,
    frequent_sparse_ids,
)
from twml_ops.analysis.feature_groups import (
    FeatureGroup,
    Sample,
    feature_groups,
    sample_of_block,
    take_sample,
)
from twml_ops.analysis.leakage import leaking_features
from twml_ops.analysis.lift import LiftRow, lift_table
from twml_ops.analysis.permutation_importance import (
    FeatureImportance,
    batch_importance,
    permutation_importance,
)
from twml_ops.analysis.population_stability import Drift, population_stability
from twml_ops.analysis.profiles import Histogram, Profile
from twml_ops.analysis.scoring import Scores, calibration_error, log_loss, predictor, score
from twml_ops.analysis.table_accesses import AccessesOfTable, TableAccesses
from twml_ops.analysis.weight_norms import weight_norms

__all__ = [
    "AccessesOfTable",
    "Drift",
    "Explanation",
    "FeatureGroup",
    "FeatureImportance",
    "FeatureSummary",
    "Histogram",
    "LiftRow",
    "Profile",
    "Sample",
    "Scores",
    "TableAccesses",
    "batch_importance",
    "calibration_error",
    "explain_features",
    "feature_groups",
    "frequent_sparse_ids",
    "leaking_features",
    "lift_table",
    "log_loss",
    "permutation_importance",
    "population_stability",
    "predictor",
    "sample_of_block",
    "score",
    "take_sample",
    "weight_norms",
]


def __dir__() -> list[str]:
    return sorted(__all__)
