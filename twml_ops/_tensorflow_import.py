"""How the commands import TensorFlow: what runs around an import, what stays out of it, and how
TensorFlow then uses the processor and the memory.

- Keras 3 and LightGBM import scikit-learn (and with it SciPy), and Keras Matplotlib's pyplot, if
  they are installed. They take about as long as Keras itself, and much longer than the rest of
  LightGBM. `defer` keeps these imports from loading packages that a command may not need.
- The import of TensorFlow makes about 300,000 objects that live as long as the process. Collections
  during the import would visit them again and again, and collections after it once more for each
  full one. `spare_imports` keeps Python's garbage collector away from them.
- Idle threads of TensorFlow look for work some thousand times before they sleep. In steps of 256
  examples, whose ops are short, that is a notable part of the CPU time of a training. `prepare`
  makes them sleep.
- Under Python 3.11 the first `tf.data.Dataset.from_generator` of a process makes glibc return every
  block of 128 KiB to the system when it is freed. Arrays of a few megabytes, such as NumPy's
  temporary ones, then cost a page fault for every 4 KiB each time. Without that glibc raises the
  bound to the size of the blocks that are freed, up to 32 MiB: `keep_freed_memory`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any

Context = Callable[[], AbstractContextManager[object]]

LAZY = ("matplotlib.pyplot",)
"""Modules that load when one of their attributes is used first."""
HIDDEN = ("sklearn",)
"""Packages of which these imports use attributes at once, for wrappers that no command uses."""
_IMPORTS = ("tensorflow", "lightgbm")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h of glibc
_LARGEST_KEPT = 32 << 20  # bytes, the largest value that glibc takes
_MALLOC_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")

_is_command = False


def import_within(context: Context, module: str = "tensorflow") -> None:
    """Makes the import of a module run in a context, unless it has been imported already.

    Args:
        context: Makes the context manager, when the import begins. Giving it again has no effect.
        module: Name of the module.
    """
    if module in sys.modules:
        return
    finder = next((f for f in sys.meta_path if isinstance(f, _ContextFinder)), None)
    if finder is None:
        finder = _ContextFinder()
        sys.meta_path.insert(0, finder)
    contexts = finder.contexts.setdefault(module, [])
    if context not in contexts:
        contexts.append(context)


class _ContextFinder:
    """Import hook for some modules, used once for each."""

    def __init__(self) -> None:
        self.contexts: dict[str, list[Context]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        contexts = self.contexts.pop(name, None)
        if contexts is None:
            return None
        if not self.contexts:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with ExitStack() as stack:
                    for context in contexts:
                        stack.enter_context(context())
                    execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def defer() -> None:
    """Defers these imports if TensorFlow has not been imported yet.

    Afterwards all of them can be imported. Keras and LightGBM stay without their wrappers for
    scikit-learn in this process.
    """
    if "tensorflow" not in sys.modules:
        for module in _IMPORTS:
            import_within(deferred, module)


@contextmanager
def deferred() -> Iterator[None]:
    """Defers the imports that begin in the block."""
    finder = _DeferringFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _DeferringFinder:
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


def spare_imports() -> None:
    """Imports TensorFlow without collections if it has not been imported yet."""
    import_within(paused)


@contextmanager
def paused() -> Iterator[None]:
    """Runs the block without collections. All objects at its end are never visited again.

    Such an object is still freed when its last reference goes; only cycles of them remain. If
    collection is disabled already, nothing changes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def prepare() -> None:
    """Makes this process one that runs a command. Call it before TensorFlow is imported."""
    global _is_command
    _is_command = True
    import_within(_with_sleeping_threads)


def keep_freed_memory() -> None:
    """Makes `malloc` keep freed blocks of up to 32 MiB, in a process that runs a command.

    Call it after TensorFlow has made the first dataset of a generator. Environment variables for
    `malloc` have precedence. It does nothing with other C libraries than glibc.
    """
    global _is_command
    if not _is_command:
        return
    _is_command = False  # once is enough
    if any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
            library.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST_KEPT)


@contextmanager
def _with_sleeping_threads() -> Iterator[None]:
    """Imports TensorFlow in the block; threads that it starts later sleep when they are idle."""
    yield
    # TensorFlow has no public function for it. Without these names its threads look for work.
    with suppress(ImportError, AttributeError):
        import tensorflow as tf
        from tensorflow.python.eager.context import context

        config = tf.compat.v1.ConfigProto()
        config.experimental.disable_thread_spinning = True
        if context()._config is None:
            context()._config = config
