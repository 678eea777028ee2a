"""Keeps the imports of TensorFlow and LightGBM from loading packages that a command may not need.

Keras 3 and LightGBM import scikit-learn (and with it SciPy), and Keras Matplotlib's pyplot, if they
are installed. They take about as long as Keras itself, and much longer than the rest of LightGBM.
"""

from __future__ import annotations

import importlib.machinery
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from twml_ops import _import_hooks

LAZY = ("matplotlib.pyplot",)
"""Modules that load when one of their attributes is used first."""
HIDDEN = ("sklearn",)
"""Packages of which these imports use attributes at once, for wrappers that no command uses."""
_IMPORTS = ("tensorflow", "lightgbm")


def defer() -> None:
    """Defers these imports if TensorFlow has not been imported yet.

    Afterwards all of them can be imported. Keras and LightGBM stay without their wrappers for
    scikit-learn in this process.
    """
    if "tensorflow" not in sys.modules:
        for module in _IMPORTS:
            _import_hooks.import_within(deferred, module)


@contextmanager
def deferred() -> Iterator[None]:
    """Defers the imports that begin in the block."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Import hook that finds these modules in its own way."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden from this import", name=name)
        if name not in LAZY:
            return None
        others = (f for f in sys.meta_path if f is not self)
        found = (f.find_spec(name, path, target) for f in others)
        spec = next((s for s in found if s is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """Makes a module that is loaded when it is asked for an attribute that it does not have.

    `importlib.util.LazyLoader` would load it for any attribute. AutoGraph asks each module of the
    process for its `__file__`.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module._loader = self._loader  # type: ignore[attr-defined]


class _Module(ModuleType):
    """A module that is not loaded yet; a `ModuleType` once it is."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            loader = self.__dict__.pop("_loader", None)
            if loader is not None:
                try:
                    loader.exec_module(self)
                except BaseException:
                    self._loader = loader
                    raise
                self.__class__ = ModuleType  # type: ignore[assignment]
        if type(self) is _Module:  # asked for while it is made or loaded
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)
