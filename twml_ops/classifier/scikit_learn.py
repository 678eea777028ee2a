"""What scikit-learn expects of an estimator, without importing it."""

from __future__ import annotations

import sys
from typing import Any


class NotFitted(ValueError, AttributeError):
    """The estimator is not fitted yet."""


def not_fitted(message: str) -> Exception:
    """The error of an estimator that is not fitted.

    It is that of scikit-learn if the program has imported it: otherwise it does not catch it.

    Args:
        message: its text.
    """
    return _exceptions("NotFittedError", NotFitted)(message)


def conversion_warning() -> type[Warning]:
    """The category of the warning that an array [rows, 1] was taken as [rows]."""
    return _exceptions("DataConversionWarning", UserWarning)


def _exceptions(name: str, otherwise: type[Any]) -> type[Any]:
    return getattr(sys.modules.get("sklearn.exceptions"), name, otherwise)


def classifier_tags() -> Any:
    """The tags of a classifier of two classes that takes text and missing values."""
    from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

    return Tags(
        estimator_type="classifier",
        target_tags=TargetTags(required=True),
        classifier_tags=ClassifierTags(multi_class=False),
        input_tags=InputTags(string=True, categorical=True, allow_nan=True),
    )
