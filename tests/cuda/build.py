"""Builds the CUDA kernels for the CPU (cuda_on_cpu.h), and the CPU's kernels as their reference."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import native_build

ROOT = native_build.ROOT
SOURCES = ROOT / "cc" / "cuda"
REFERENCE = ROOT / "tests" / "cuda" / "reference.cc"
ROOT_INCLUDE = f"-I{ROOT}"
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


@dataclass(frozen=True)
class Edit:
    """A change of one file of cc/cuda.

    Attributes:
        name: What the change is called.
        file: The name of the file.
        old: Text that occurs in it once.
        new: What replaces it.
    """

    name: str
    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> Path:
        """Copies the sources to a folder and changes them there."""
        copy = folder / SOURCES.relative_to(ROOT)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(SOURCES, copy)
        text = (copy / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} must contain {self.old!r} once")
        (copy / self.file).write_text(text.replace(self.old, self.new))
        return folder


@dataclass(frozen=True)
class Kernel:
    """A kernel of cc/cuda.

    Attributes:
        name: Its name.
        file: The name of the file that it is in.
        head: Its declaration, up to the opening brace.
    """

    name: str
    file: str
    head: str


def kernels() -> list[Kernel]:
    """All kernels of cc/cuda."""
    pattern = re.compile(r"__global__ void (?:__launch_bounds__\(kThreads\)\s+)?(\w+)\([^{]*\{")
    return [
        Kernel(found[1], path.name, found[0])
        for path in sorted((*SOURCES.glob("*.cu"), *SOURCES.glob("*.h")))
        for found in pattern.finditer(path.read_text())
    ]


def included_by(source: Path) -> set[str]:
    """The files of cc/cuda that a file of this folder consists of."""
    found, waiting = set(), {source.name}
    while waiting:
        name = waiting.pop()
        found.add(name)
        text = (SOURCES / name).read_text()
        waiting |= set(re.findall(r'#include "cc/cuda/([^"]+)"', text)) - found
    return found


def has_compiler() -> bool:
    """Tells whether the compiler that native_build.py uses is installed."""
    return shutil.which(shlex.split(os.environ.get("CXX", "g++"))[-1]) is not None


def emulated_library(
    checks: native_build.Sanitizer = native_build.NONE, edit: Edit | None = None
) -> Path:
    """Builds the library of emulated kernels.

    Args:
        checks: The sanitizer to compile with.
        edit: A change of the sources. Only those that it affects are compiled again.

    Returns:
        The path of the library.
    """
    ninja = native_build.NinjaFile(ROOT, checks.name or ".")
    directory = f"{checks.prefix}cuda"
    flags = [*FLAGS, *checks.flags, "-x", "c++"]
    objects = []
    for source in sorted(SOURCES.glob("*.cu")):
        if edit is not None and edit.file in included_by(source):
            copy = edit.apply(ROOT / "build" / "mutants" / edit.name)
            mutated = copy / source.relative_to(ROOT)
            objects.append(
                ninja.compile(
                    mutated, directory, [*flags, "-O0", "-Wno-error", f"-I{copy}", ROOT_INCLUDE]
                )
            )
        else:
            objects.append(ninja.compile(source, directory, [*flags, ROOT_INCLUDE]))
    name = "emulated" if edit is None else edit.name
    library = f"{directory}/libtwml_cuda_{name}.so"
    ninja.link(library, objects, ["-shared", *checks.flags])
    return native_build.run_ninja(ROOT, ninja, f"{checks.name}cuda-{name}", [library])[0]


def files_of(*sources: Path) -> set[Path]:
    """The files of cc that sources include, and the sources of these headers."""
    found: set[Path] = set()
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        included = [ROOT / i for i in re.findall(r'#include "(cc/[^"]+)"', path.read_text())]
        new = {f for i in included for f in (i, i.with_suffix(".cc")) if f.exists()} - found
        found |= new
        waiting += new
    return found


def reference_library() -> Path:
    """Builds the C interface of the CPU's kernels and returns its path."""
    ninja = native_build.NinjaFile(ROOT)
    core = native_build.core_objects(ninja, ROOT, files=files_of(REFERENCE))
    flags = [*native_build.TARGETS["COPTS"], f"-I{ROOT}"]
    objects = [ninja.compile(REFERENCE, "cuda", flags)]
    library = "cuda/libtwml_core_reference.so"
    ninja.link(library, [*objects, *core], ["-shared", "-pthread"])
    return native_build.run_ninja(ROOT, ninja, "cuda-reference", [library])[0]


def emulation_program() -> Path:
    """Builds the test program of the emulation and returns its path."""
    ninja = native_build.NinjaFile(ROOT)
    flags = [*FLAGS, ROOT_INCLUDE]
    object_file = ninja.compile(ROOT / "tests" / "cuda" / "emulation.cc", "cuda", flags)
    ninja.link("cuda/emulation", [object_file], [])
    return native_build.run_ninja(ROOT, ninja, "cuda-emulation", ["cuda/emulation"])[0]
