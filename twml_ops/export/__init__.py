"""Export of trained models to the forms that servers load.

- `to_tf`: a SavedModel with the ops of this package, the fastest under TensorFlow.
- `to_stock_tf`: a SavedModel of stock TensorFlow ops, which loads without this package.
- `to_scorer`: arrays for `twml_ops.core.Scorer`, which needs no TensorFlow.
- `ScorerPublisher`: the same of the checkpoints of a training, as changed rows.
"""

from twml_ops.export.publisher import ScorerPublisher
from twml_ops.export.saved_model import to_stock_tf, to_tf
from twml_ops.export.scorer import to_scorer
from twml_ops.export.tables import TableFormat

__all__ = ["ScorerPublisher", "TableFormat", "to_scorer", "to_stock_tf", "to_tf"]


def __dir__() -> list[str]:
    return sorted(__all__)
