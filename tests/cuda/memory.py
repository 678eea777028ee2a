"""NumPy arrays in the memory of a device, between fences."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.cuda.interface import Array, Batch, Csr, Table

# Bytes of ones (NaNs, or negative integers) before and after each array. Kernels that read them get
# wrong results, and those that write them are found. The address sanitizer does better without.
_FENCE = 0 if "asan" in os.environ.get("LD_PRELOAD", "") else 4096


@dataclass
class Memory:
    """The arrays of one call on the device."""

    library: Any
    pointers: list[int] = field(default_factory=list)
    fenced: list[tuple[int, int]] = field(default_factory=list)  # (first byte, bytes) of arrays
    budget: int | None = None  # bytes that the library may allocate

    def allocate(self, size: int) -> int | None:
        if self.budget is not None:
            if size > self.budget:
                return None
            self.budget -= size
        pointer = self.library.twml_cuda_allocate(max(size, 1))
        assert pointer, "the device is out of memory"
        self.pointers.append(pointer)
        return pointer

    def put(self, array: Array | None) -> int | None:
        if array is None:
            return None
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        fence = np.full(_FENCE, 255, np.uint8)
        data = np.concatenate([fence, data, fence])
        pointer = self.allocate(data.nbytes)
        assert pointer is not None
        assert self.library.twml_cuda_copy(pointer, data.ctypes.data, data.nbytes) == 0
        self.fenced.append((pointer + _FENCE, array.nbytes))
        return pointer + _FENCE

    def check_fences(self) -> None:
        for first, size in self.fenced:
            for fence in (first - _FENCE, first + size):
                assert (self.get(fence, _FENCE, np.uint8) == 255).all(), "written out of bounds"

    def get(self, pointer: int, shape: Any, dtype: Any) -> Array:
        array = np.empty(shape, dtype)
        assert self.library.twml_cuda_copy(array.ctypes.data, pointer, array.nbytes) == 0
        return array

    def free(self) -> None:
        for pointer in self.pointers:
            assert self.library.twml_cuda_free(pointer) == 0


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
