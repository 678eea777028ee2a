"""The CUDA library under test, which is emulated unless TWML_CUDA_LIBRARY names a real one."""

import os
from pathlib import Path

import pytest

from tests.cuda import build
from tests.cuda.cases import Checker
from tests.cuda.cpu_kernels import Reference
from tests.cuda.library import CudaLibrary


@pytest.fixture(scope="session")
def reference_path():
    if not build.has_compiler():
        pytest.skip("the emulated CUDA kernels need a C++ compiler")
    return build.reference_library()


@pytest.fixture(scope="session")
def cuda(reference_path):
    path = os.environ.get("TWML_CUDA_LIBRARY")
    return CudaLibrary(Path(path) if path else build.emulated_library())


@pytest.fixture(scope="session")
def checker(cuda, reference_path):
    return Checker(cuda, Reference(reference_path))
