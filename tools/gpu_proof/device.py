"""The GPU, as its driver describes it, and memory of it as arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.cuda.library import CudaLibrary

# CUdevice_attribute: names as in cuda.h, without CU_DEVICE_ATTRIBUTE_.
_ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 16,
    "MEMORY_CLOCK_RATE": 36,  # kHz
    "GLOBAL_MEMORY_BUS_WIDTH": 37,  # bits
    "L2_CACHE_SIZE": 38,
    "COMPUTE_CAPABILITY_MAJOR": 75,
    "COMPUTE_CAPABILITY_MINOR": 76,
}
EMULATED = {"name": "emulation", "l2_bytes": 1 << 10, "peak_bytes_per_second": None}


def describe() -> dict[str, Any] | None:
    """The first GPU: name, driver, capability, cache and peak bandwidth; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(100)
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return None
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetName(name, len(name), device)
    found = {}
    for attribute, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        found[attribute] = value.value
    capability = [found[f"COMPUTE_CAPABILITY_{part}"] for part in ("MAJOR", "MINOR")]
    clock, width = found["MEMORY_CLOCK_RATE"], found["GLOBAL_MEMORY_BUS_WIDTH"]
    return {
        "name": name.value.decode(),
        "cuda_of_driver": version.value,
        "architecture": "sm_" + "".join(map(str, capability)),
        "multiprocessors": found["MULTIPROCESSOR_COUNT"],
        "l2_bytes": found["L2_CACHE_SIZE"],
        # Two transfers in each cycle of the clock.
        "peak_bytes_per_second": 2 * clock * 1000 * width / 8 or None,
    }


class DeviceArray:
    """Memory of the device that PyTorch and CuPy can use as it is.

    Args:
        cuda: The library that allocates it.
        shape: Its shape.
        dtype: Its type; uint16 stands for bfloat16.
    """

    def __init__(self, cuda: CudaLibrary, shape: tuple[int, ...], dtype: Any) -> None:
        self.cuda, self.shape, self.dtype = cuda, shape, np.dtype(dtype)
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.pointer = cuda.library.twml_cuda_allocate(max(1, self.nbytes))
        if not self.pointer:
            raise MemoryError(f"the device has no {self.nbytes} bytes left")

    @classmethod
    def of(cls, cuda: CudaLibrary, array: Any) -> DeviceArray:
        """A copy of a NumPy array."""
        array = np.ascontiguousarray(array)
        made = cls(cuda, array.shape, array.dtype)
        made._copy(made.pointer, array.ctypes.data, array.nbytes)
        return made

    def fill(self, block: Any) -> DeviceArray:
        """Repeats a NumPy array in it, without the time to make as many values on the host."""
        done = min(self.nbytes, block.nbytes)
        self._copy(self.pointer, block.ctypes.data, done)
        while done < self.nbytes:
            more = min(done, self.nbytes - done)
            self._copy(self.pointer + done, self.pointer, more)
            done += more
        return self

    def numpy(self) -> Any:
        """A copy on the host."""
        array = np.empty(self.shape, self.dtype)
        self._copy(array.ctypes.data, self.pointer, self.nbytes)
        return array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # int16 has as many bytes, and PyTorch has no unsigned type for it.
        kind = "<i2" if self.dtype == np.uint16 else self.dtype.str
        return {"shape": self.shape, "typestr": kind, "data": (self.pointer, False), "version": 3}

    def on_host(self) -> Any:
        """The memory itself as a NumPy array, where the device is emulated."""
        buffer = (ctypes.c_char * self.nbytes).from_address(self.pointer)
        return np.frombuffer(buffer, self.dtype).reshape(self.shape)

    def free(self) -> None:
        """Gives the memory back."""
        self.cuda.library.twml_cuda_free(self.pointer)

    def _copy(self, to: int, source: int, size: int) -> None:
        if self.cuda.library.twml_cuda_copy(to, source, size) != 0:
            raise RuntimeError(f"a copy of {size} bytes failed")
