"""The library of CUDA kernels, which is loaded when a table is to be on a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

LIBRARY_VARIABLE = "TWML_OPS_CUDA_LIBRARY"
"""This environment variable names the library, which otherwise is a file of the package."""
STRICT_VARIABLE = "TWML_OPS_CUDA_STRICT"
"""With this environment variable set to 1, every op waits for the GPU to report its errors."""
_FILE = "libtwml_cuda.so"
_EXTRA_PACKAGE = "twml_ops_cuda"


class CudaKernels:
    """The kernels for CUDA GPUs of the op library.

    Args:
        op_library: Path of the op library, or None if stock ops replace it.
    """

    def __init__(self, op_library: Path | None) -> None:
        self._op_library = op_library
        self._problem: str | None = None
        self._tried = False

    def are_available(self) -> bool:
        """Whether there are kernels and a GPU. The first call loads the library."""
        return self.problem() is None

    def problem(self) -> str | None:
        """The reason why there are no kernels, or None if there are."""
        if not self._tried:
            self._tried = True
            self._problem = self._load()
        return self._problem

    def _load(self) -> str | None:
        if self._op_library is None:
            return "stock TensorFlow ops replace the op library"
        path = find_library(self._op_library.parent)
        if path is None:
            return f"the library of CUDA kernels is not installed ({_FILE}; `make cuda-library`)"
        use_cuda = ctypes.CDLL(str(self._op_library)).twml_use_cuda
        use_cuda.restype = ctypes.c_char_p
        strict = os.environ.get(STRICT_VARIABLE) == "1"
        error: bytes | None = use_cuda(str(path).encode(), int(strict))
        return None if error is None else error.decode()


def find_library(package: Path) -> Path | None:
    """Finds the library of CUDA kernels.

    Args:
        package: Folder of this package.

    Returns:
        What the environment variable names, a file of the package, or one of the extra package; or
        None.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named)
    folders = [package]
    extra = importlib.util.find_spec(_EXTRA_PACKAGE)
    if extra is not None and extra.submodule_search_locations:
        folders += [Path(folder) for folder in extra.submodule_search_locations]
    return next((f / _FILE for f in folders if (f / _FILE).exists()), None)
