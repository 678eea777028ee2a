"""The functions of the CUDA library that report bad input."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.cuda.interface import NO_ERRORS


class _Errors(ctypes.Structure):
    _fields_ = [(f"e{i}", ctypes.c_uint64) for i in range(len(NO_ERRORS))]


class Reports:
    """The reports of bad input of a device, and the host's copy of them.

    Args:
        library: The loaded library.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        for name in ("new", "device", "fetch", "reset", "seen"):
            getattr(library, f"twml_cuda_reports_{name}").argtypes = [ctypes.c_void_p] * (
                2 if name in ("fetch", "reset") else 1
            )
        library.twml_cuda_reports_new.restype = ctypes.c_void_p
        library.twml_cuda_reports_device.restype = ctypes.c_void_p
        library.twml_cuda_reports_seen.restype = _Errors
        self.pointer = library.twml_cuda_reports_new(None)
        self.synchronize()

    def report_bad_ids(self, number: int) -> None:
        """Does on the device what kernels do that find bad ids."""
        device = self.library.twml_cuda_reports_device(self.pointer)
        value = np.array([number], np.uint64)
        assert self.library.twml_cuda_copy(device, value.ctypes.data, value.nbytes) == 0

    def fetch(self) -> None:
        """Queues a copy to the host."""
        assert self.library.twml_cuda_reports_fetch(self.pointer, None) == 0

    def reset(self) -> None:
        """Clears the reports and the copy."""
        assert self.library.twml_cuda_reports_reset(self.pointer, None) == 0

    def seen(self) -> tuple[int, ...]:
        """The copy of the host."""
        errors = self.library.twml_cuda_reports_seen(self.pointer)
        return tuple(getattr(errors, name) for name, _ in _Errors._fields_)

    def synchronize(self) -> None:
        """Waits for what is queued."""
        assert self.library.twml_cuda_synchronize(None) == 0
