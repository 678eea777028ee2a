"""What a model makes of its features, and how good its scores are, from NumPy and TensorFlow data.

The commands `twml-ops train`, `evaluate` and `explain` show what these functions compute:

| function | what it computes |
|---|---|
| `score` | the predictions of a model over a data set, as `Scores` |
| `lift_table` | positives by score, from the highest tenth of the examples to the lowest |
| `calibration_error`, `log_loss` | how far predictions are from what was observed |
| `permutation_importance` | the log loss added when a feature is shuffled over the rows |
| `weight_norms` | the norm of the table rows that a feature's entries read |
| `Profile` | coverage and histograms of every feature of a data set, in bounded memory |
| `population_stability` | how far a histogram has moved between two data sets |
| `explain_features` | all of it, feature by feature |

Features are the dictionaries of ragged tensors that the sources of `twml_ops.data` give:
`continuous_ids` and `continuous_values`, `categorical_ids`, `sparse_ids` and `sparse_values`; a
`twml_ops.data.Schema` names them.
"""

from twml_ops.analysis.explanation import Explanation, Feature, explain_features, sparse_ids_of
from twml_ops.analysis.feature_masks import Entries, entries_of, sample_of
from twml_ops.analysis.lift import LiftRow, lift_table
from twml_ops.analysis.permutation_importance import (
    FeatureImportance,
    batch_importance,
    permutation_importance,
)
from twml_ops.analysis.population_stability import Drift, population_stability
from twml_ops.analysis.profiles import Histogram, Profile
from twml_ops.analysis.scoring import Scores, calibration_error, log_loss, predictor, score
from twml_ops.analysis.weight_norms import weight_norms

__all__ = [
    "Drift",
    "Entries",
    "Explanation",
    "Feature",
    "FeatureImportance",
    "Histogram",
    "LiftRow",
    "Profile",
    "Scores",
    "batch_importance",
    "calibration_error",
    "entries_of",
    "explain_features",
    "lift_table",
    "log_loss",
    "permutation_importance",
    "population_stability",
    "predictor",
    "sample_of",
    "score",
    "sparse_ids_of",
    "weight_norms",
]
