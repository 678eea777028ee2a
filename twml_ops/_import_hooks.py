"""Contexts in which a module is imported, wherever that happens first."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType

Context = Callable[[], AbstractContextManager[object]]


def import_within(context: Context, module: str = "tensorflow") -> None:
    """Makes the import of a module run in a context, unless it has been imported already.

    Args:
        context: Makes the context manager, when the import begins. Giving it again has no effect.
        module: Name of the module.
    """
    if module in sys.modules:
        return
    finder = next((f for f in sys.meta_path if isinstance(f, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    contexts = finder.contexts.setdefault(module, [])
    if context not in contexts:
        contexts.append(context)


class _Finder:
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
