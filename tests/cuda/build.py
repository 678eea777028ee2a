"""Builds the CUDA kernels for the CPU (cuda_on_cpu.h), and the CPU's kernels as their reference."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import native_build

ROOT = native_build.ROOT
# The emulation runs fibers, of which longjmp with checks knows nothing.
FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-U_FORTIFY_SOURCE",
    "'-DTWML_CUDA_EMULATION=\"tests/cuda/cuda_on_cpu.h\"'",
]


def has_compiler() -> bool:
    """Tells whether the compiler that native_build.py uses is installed."""
    return shutil.which(shlex.split(os.environ.get("CXX", "g++"))[-1]) is not None


def emulated_library(
    checks: native_build.Sanitizer = native_build.NONE,
    mutant: str = "",
    edits: Mapping[str, tuple[str, str]] | None = None,
) -> Path:
    """Builds the library of emulated kernels.

    Args:
        checks: the sanitizer to compile with.
        mutant: name of a mutant, or "" for the sources as they are.
        edits: what the mutant changes: the name of a file of cc/cuda -> (old text, new text).

    Returns:
        The path of the library.
    """
    sources = ROOT / "cc" / "cuda"
    include = [f"-I{ROOT}"]
    if mutant:
        copy = ROOT / "build" / "mutants" / mutant
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sources, copy / "cc" / "cuda")
        sources = copy / "cc" / "cuda"
        include = [f"-I{copy}", *include]
        for name, (old, new) in (edits or {}).items():
            text = (sources / name).read_text()
            if text.count(old) != 1:
                raise ValueError(f"{mutant}: {name} must contain {old!r} once")
            (sources / name).write_text(text.replace(old, new))
    ninja = native_build.NinjaFile(ROOT)
    directory = f"{checks.prefix}cuda{mutant}"
    flags = [*FLAGS, *include, *checks.flags, "-x", "c++"]
    objects = [ninja.compile(source, directory, flags) for source in sorted(sources.glob("*.cu"))]
    library = f"{directory}/libtwml_cuda_emulated.so"
    ninja.link(library, objects, ["-shared", *checks.flags])
    return native_build.run_ninja(ROOT, ninja, directory.replace("/", "-"), [library])[0]


def reference_library() -> Path:
    """Builds the C interface of the CPU's kernels and returns its path."""
    ninja = native_build.NinjaFile(ROOT)
    core = native_build.core_objects(ninja, ROOT)
    flags = [*native_build.TARGETS["COPTS"], f"-I{ROOT}"]
    objects = [ninja.compile(ROOT / "tests" / "cuda" / "reference.cc", "cuda", flags)]
    library = "cuda/libtwml_core_reference.so"
    ninja.link(library, [*objects, *core], ["-shared", "-pthread"])
    return native_build.run_ninja(ROOT, ninja, "cuda-reference", [library])[0]
