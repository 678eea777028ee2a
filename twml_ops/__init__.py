"""TensorFlow/Keras layers, optimizers and ops for ranking models on very sparse data.

Submodules load on first use, so `twml_ops.core` (NumPy only) works without TensorFlow. Keras loads
saved models after `import twml_ops`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import platform
from typing import Any

from twml_ops._keras_classes import register_with_keras

__version__ = "0.1.0"

_SUBMODULES = (
    *(
        "analysis",
        "checkpoint",
        "cli",
        "core",
        "data",
        "distribute",
        "estimator",
        "export",
        "layers",
    ),
    *(
        "metrics",
        "models",
        "ops",
        "optimizers",
        "placement",
        "peers",
        "planning",
        "research",
        "tpu",
        "training",
    ),
)

_CLASSES = {"Classifier": "classifier"}  # of modules that are imported when they are used

__all__ = [*_SUBMODULES, *_CLASSES, "__version__"]

if importlib.machinery.PathFinder.find_spec(f"{__name__}._core", __path__) is None:
    _root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    raise ImportError(
        f"twml_ops in {_root} has no native library for Python {platform.python_version()}: if "
        "this is its source tree, run `python setup.py build_ext --inplace` there, or start Python "
        "in another folder to import the installed twml_ops",
        name=__name__,
    )

register_with_keras()  # when Keras is imported


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _CLASSES:
        return getattr(importlib.import_module(f"{__name__}.{_CLASSES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
