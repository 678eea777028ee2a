"""The module through which other packages import `twml_ops.research`, when a name of it is used.

The names of its Keras classes are registered with placeholders, so that files that have them load
without an import of the package, whatever version wrote them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import tensorflow as tf

from twml_ops._keras_classes import PACKAGE, placeholder
from twml_ops._keras_classes import RESEARCH as KERAS_CLASSES

MODELS = ("dhen",)
_NAME = "twml_ops.research"


def research(module: str = "") -> ModuleType:
    """Imports the package.

    Args:
        module: the name of one of its modules; "": the package itself.

    Returns:
        The module.
    """
    return importlib.import_module(f"{_NAME}.{module}" if module else _NAME)


def scorer_layers() -> dict[Any, Any]:
    """The steps of a scorer for the layers of the package.

    Returns:
        Class of a layer -> the function that appends its steps. It is empty if the package has not
        been imported, because no model can have such a layer then.
    """
    if _NAME not in sys.modules:
        return {}
    found: dict[Any, Any] = research("_scorer_steps").RESEARCH_LAYERS
    return found


def register_keras_classes() -> None:
    """Registers a placeholder for each Keras class of the package that is not registered."""
    registered = tf.keras.utils.get_custom_objects()
    for name in KERAS_CLASSES:
        registered.setdefault(f"{PACKAGE}>{name}", placeholder("_research", name))
