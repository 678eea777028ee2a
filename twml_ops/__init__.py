"""TensorFlow/Keras layers, optimizers and ops for ranking models on very sparse data.

Submodules load on first use, so `twml_ops.core` (NumPy only) works without TensorFlow.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"

_SUBMODULES = (
    *("cli", "core", "data", "distribute", "estimator", "export", "layers"),
    *("metrics", "models", "ops", "optimizers", "planning", "tpu"),
)

__all__ = [*_SUBMODULES, "__version__"]


def __getattr__(name: str) -> ModuleType:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
