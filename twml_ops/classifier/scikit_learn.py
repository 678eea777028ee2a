"""What scikit-learn expects of an estimator, without importing it."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


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


class Parameters:
    """The protocol of scikit-learn for parameters: the arguments of the constructor."""

    @classmethod
    def parameter_names(cls) -> list[str]:
        """The names of the parameters.

        Returns:
            The arguments of the constructor.
        """
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters.

        Args:
            deep: is ignored, since no parameter is an estimator.

        Returns:
            Value by name.
        """
        return {name: getattr(self, name) for name in self.parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Changes parameters for the next `fit`.

        Args:
            **params: values by name.

        Returns:
            The estimator itself.

        Raises:
            ValueError: there is no such parameter; none is changed.
        """
        known = self.parameter_names()
        for name in params:
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. Valid parameters are: "
                    f"{known}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = (
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not defaults[name].default and value != defaults[name].default
        )
        return f"{type(self).__name__}({', '.join(changed)})"
