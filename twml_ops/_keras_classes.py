"""Keras finds the classes of saved models after `import twml_ops` alone, which loads no TensorFlow.

When Keras' registry of classes loads, each registered name of this package gets a placeholder that
imports its class when a file asks for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from twml_ops._tensorflow_import import import_within

PACKAGE = "Twml"
"""What Keras writes before the names of our classes."""
RESEARCH = (
    "DHENBlock",
    "FieldAttention",
    "FieldConvolution",
    "FieldCross",
    "FieldDot",
    "FieldLinear",
    "LearnedHash",
    "Shampoo",
    "Tower",
    "TowerModule",
)
CLASSES = {
    "layers": "BoostedTrees CategoryRows CountStatistics Cross DotInteraction DynamicLookup "
    "DynamicSparseLinear FactorizationMachine FieldEmbedding FieldLogarithms FieldQuantiles "
    "GroupedSparseLinear HashingDiscretizer IsotonicCalibration MDLDiscretizer MaxNorm "
    "OnlineStandardize PercentileDiscretizer PlattScaling SparseLinear StringHash TargetStatistics",
    "metrics": "CalibrationRatio ExactPRAUC ExactROCAUC NormalizedEntropy PRAUC ROCAUC "
    "RelativeCrossEntropy Segmented Windowed",
    "models": "Bias HashedIds MeanLogit SigmoidOfMeanLogit SplitLabels",
    "optimizers": "Adagrad CompositeOptimizer Ftrl LazyAdam LinearScalingWarmup LossScaleOptimizer "
    "Momentum RowWiseAdagrad SGD",
    "_research": " ".join(RESEARCH),
}
"""Package of twml_ops -> the names of its registered classes."""
_REGISTRIES = ("keras.src.saving.object_registration", "tf_keras.src.saving.object_registration")


def register_with_keras() -> None:
    """Registers the placeholders, now if a Keras has been imported, and in each that will be."""
    for name in _REGISTRIES:
        if name in sys.modules:
            _register(sys.modules[name])
        else:
            import_within(_REGISTERING[name], name)


def placeholder(package: str, name: str) -> type:
    """A class of which Keras makes an object of the class with this name."""

    def from_config(config: dict[str, Any]) -> Any:
        module = importlib.import_module(f"twml_ops.{package}")
        if package == "_research":
            module = module.research()
        return _registered(module, name).from_config(config)

    return type(name, (), {"from_config": staticmethod(from_config)})


def _registered(module: ModuleType, name: str) -> Any:
    """The class, which need not be a public name of its package."""
    found = getattr(module, name, None)
    if found is None:
        for registry in filter(None, map(sys.modules.get, _REGISTRIES)):
            found = found or (_classes_of(registry) or {}).get(f"{PACKAGE}>{name}")
    return found


def _register(registry: ModuleType) -> None:
    registered = _classes_of(registry)
    if registered is not None:  # otherwise a Keras that keeps them elsewhere
        for package, names in CLASSES.items():
            for name in names.split():
                registered.setdefault(f"{PACKAGE}>{name}", placeholder(package, name))


def _classes_of(registry: ModuleType) -> dict[str, Any] | None:
    """The registered classes of Keras 3 or 2, by name."""
    found = (getattr(registry, f"{p}GLOBAL_CUSTOM_OBJECTS", None) for p in ("", "_"))
    return next((f for f in found if isinstance(f, dict)), None)


@contextmanager
def _then_registered(name: str) -> Iterator[None]:
    """Registers the placeholders when the block, which imports the registry `name`, has ended."""
    yield
    _register(sys.modules[name])


_REGISTERING = {name: partial(_then_registered, name) for name in _REGISTRIES}
