"""`Classifier`: trainings on data frames and arrays, as scikit-learn has them.

Importing it imports neither TensorFlow nor pandas, Polars or scikit-learn.
"""

from twml_ops.classifier.estimator import Classifier

__all__ = ["Classifier"]
