"""The files that the proof consists of, for machines without a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cuda import build

ROOT = build.ROOT
PREBUILT = "libtwml_cuda.so"


def files() -> list[Path]:
    """The files of the proof, relative to the root of the repository."""
    cuda = [p for p in build.SOURCES.iterdir() if p.suffix in (".cu", ".h")]
    found = {*cuda, *build.files_of(build.REFERENCE, *cuda)}
    for folder, patterns in (
        ("tests/cuda", ("*.py", "*.h", "*.cc")),
        ("tools/gpu_proof", ("*.py",)),
    ):
        found |= {p for pattern in patterns for p in (ROOT / folder).glob(pattern)}
    found |= {ROOT / f for f in ("native_build.py", "bazel/targets.bzl", "tools/cuda_library.py")}
    of_pytest = ("test_", "conftest")
    return sorted(p.relative_to(ROOT) for p in found if not p.name.startswith(of_pytest))


def write(folder: Path, library: Path | None) -> int:
    """Copies the files to a new folder.

    Args:
        folder: The folder, which must not exist.
        library: A CUDA library that is used where there is no nvcc; None: none.

    Returns:
        The bytes of the folder.
    """
    folder.mkdir(parents=True)
    for path in files():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    if library is not None:
        shutil.copyfile(library, folder / PREBUILT)
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
