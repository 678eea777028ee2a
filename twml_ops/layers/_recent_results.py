"""Remembers the results of the last few calls of a function of arrays."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Result = TypeVar("Result")


class RecentResults(Generic[Result]):
    """Remembers the last few results, since the trials of a search ask for the same ones again.

    Several threads may use it.

    Args:
        size: number of results that are kept.
    """

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self._found: dict[bytes, Result] = {}
        self._lock = threading.Lock()

    def get(
        self, arrays: Sequence[npt.NDArray[Any]], options: Any, compute: Callable[[], Result]
    ) -> Result:
        """The result for the arrays and options, which is computed if it is not remembered.

        Args:
            arrays: what the result depends on; they are compared by a digest.
            options: what else it depends on, with a `repr` that determines it.
            compute: computes the result.
        """
        digest = hashlib.blake2b(repr(options).encode())
        for array in arrays:
            digest.update(repr((array.shape, array.dtype)).encode())
            digest.update(np.ascontiguousarray(array).data)
        key = digest.digest()
        with self._lock:
            known = key in self._found
            if known:
                result = self._found[key]
        if not known:
            result = compute()  # other threads may compute theirs
        with self._lock:
            self._found.pop(key, None)
            self._found[key] = result  # the latest is the last
            while len(self._found) > self._size:
                del self._found[next(iter(self._found))]
        return result

    def clear(self) -> None:
        """Forgets all results."""
        self._found.clear()
