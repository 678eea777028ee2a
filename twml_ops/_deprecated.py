"""Old names of renamed public objects, kept for one release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def deprecated_aliases(module: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes a module's `__getattr__` that resolves the old names of its renamed objects.

    Usage, at the end of the module:

        __getattr__ = deprecated_aliases(__name__, {"old_name": "new_name"})

    Args:
        module: The module's `__name__`.
        new_names: Old name → name under which the module has the object now.

    Returns:
        A function for the module's `__getattr__`. For an old name it warns with
        DeprecationWarning and returns the renamed object; for any other name it raises
        AttributeError.
    """

    def __getattr__(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new_name = new_names[name]
        warnings.warn(
            f"{module}.{name} is deprecated and will be removed in the next release: "
            f"use {module}.{new_name}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(sys.modules[module], new_name)

    return __getattr__
