"""Keeps Python's garbage collector away from the objects that TensorFlow's import makes.

The import makes about 300,000 objects that live as long as the process. Collections during the
import would visit them again and again, and those after it once more for each full collection.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from twml_ops import _import_hooks


def spare_imports() -> None:
    """Imports TensorFlow without collections if it has not been imported yet."""
    _import_hooks.import_within(paused)


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
