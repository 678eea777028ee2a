"""NumPy arrays in the memory of a device, between fences."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.cuda.interface import Array, Batch, Csr, Table

# Bytes of ones (NaNs, or negative integers) before and after each array. Kernels that read them get
# wrong results, and those that write them are found. The address sanitizer does better without.
_FENCE = 0 if "asan" in os.environ.get("LD_PRELOAD", "") else 4096


@dataclass
class Memory:
    """The arrays of one call on the device.

    Attributes:
        library: The loaded library.
        stream: The stream that the call is queued on; None for the default one.
        workspace: What allocates working memory in place of `allocate`; None is returned if there
            is none.
    """

    library: Any
    stream: int | None = None
    workspace: Callable[[Memory, int], int | None] | None = None
    pointers: list[int] = field(default_factory=list)
    fenced: list[tuple[int, int]] = field(default_factory=list)  # (first byte, bytes) of arrays

    def allocate(self, size: int) -> int | None:
        pointer = self.library.twml_cuda_allocate(max(size, 1))
        if pointer:
            self.pointers.append(pointer)
        return pointer

    def allocate_workspace(self, size: int) -> int | None:
        return (self.workspace or Memory.allocate)(self, size)

    def put(self, array: Array | None) -> int | None:
        if array is None:
            return None
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        fence = np.full(_FENCE, 255, np.uint8)
        data = np.concatenate([fence, data, fence])
        pointer = self.allocate(data.nbytes)
        assert pointer, "the device is out of memory"
        assert self.library.twml_cuda_copy(pointer, data.ctypes.data, data.nbytes) == 0
        if self.stream is not None:  # which does not wait for the default stream
            self.synchronize(None)
        self.fenced.append((pointer + _FENCE, array.nbytes))
        return pointer + _FENCE

    def check_fences(self) -> None:
        for first, size in self.fenced:
            for fence in (first - _FENCE, first + size):
                assert (self.get(fence, _FENCE, np.uint8) == 255).all(), "written out of bounds"

    def get(self, pointer: int, shape: Any, dtype: Any) -> Array:
        array = np.empty(shape, dtype)
        if self.stream is not None:
            self.synchronize(self.stream)
        assert self.library.twml_cuda_copy(array.ctypes.data, pointer, array.nbytes) == 0
        return array

    def synchronize(self, stream: int | None) -> None:
        assert self.library.twml_cuda_synchronize(stream) == 0

    def free(self) -> None:
        for pointer in self.pointers:
            assert self.library.twml_cuda_free(pointer) == 0
        self.pointers.clear()


def batch_of(memory: Memory, batch: Csr) -> Any:
    return Batch(
        memory.put(batch.ids),
        batch.ids.dtype == np.int64,
        memory.put(batch.values),
        memory.put(batch.row_splits),
        len(batch.ids),
        batch.num_rows,
    )


def table_of(pointer: int | None, table: Array) -> Any:
    return Table(pointer, table.dtype == np.uint16, *table.shape)
