"""Compiles cc/core and its C++ tests for aarch64 and runs them with an emulator.

    python tools/aarch64_tests.py [--gtest_filter=...]

It needs a cross compiler, an emulator of processes and the sources of GoogleTest, of Debian's
packages g++-aarch64-linux-gnu, qemu-user and googletest. The core has the flags of the ordinary
build; only the tests are compiled with -O1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # native_build.py is beside the package

import native_build  # noqa: E402

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SYSTEM = Path("/usr/aarch64-linux-gnu")  # the C library of the cross compiler
GOOGLETEST = Path("/usr/src/googletest/googletest")


@dataclass(frozen=True)
class Cross(native_build.Sanitizer):
    """Objects for aarch64, in a folder of their own."""

    name: str = "aarch64"

    @property
    def flags(self) -> list[str]:
        """None: the flags of the ordinary build."""
        return []


def missing() -> list[str]:
    """The Debian packages of what is not installed."""
    found = {
        "g++-aarch64-linux-gnu": shutil.which(COMPILER) and SYSTEM.is_dir(),
        "qemu-user": shutil.which(EMULATOR),
        "googletest": GOOGLETEST.is_dir(),
    }
    return [package for package, there in found.items() if not there]


def build() -> Path:
    """Builds the tests and returns their binary."""
    caching = "ccache " if shutil.which("ccache") else ""
    os.environ["CXX"] = f"{caching}{COMPILER}"
    cross = Cross()
    ninja = native_build.NinjaFile(ROOT, cross.name)
    core = native_build.core_objects(ninja, ROOT, cross, machine="aarch64")
    core += native_build.serving_objects(ninja, ROOT, cross)
    include = [f"-isystem{GOOGLETEST / 'include'}"]
    flags = [*native_build.TARGETS["COPTS"], "-O1", f"-I{ROOT}", *include]
    tests = [
        ninja.compile(source, f"{cross.name}/core_tests", flags)
        for source in native_build.sources(ROOT, "tests/cc", "TEST_SOURCES")
    ]
    framework = [GOOGLETEST / "src" / name for name in ("gtest-all.cc", "gtest_main.cc")]
    objects = ninja.compile_together(
        framework, "googletest", cross.name, ["-O1", f"-I{GOOGLETEST}", *include]
    )
    output = f"{cross.name}/core_tests/run"
    ninja.link(output, [*tests, *core, *objects], ["-pthread"])
    return native_build.run_ninja(ROOT, ninja, cross.name, [output])[0]


def main(arguments: list[str]) -> int:
    """Runs the tests with the arguments of GoogleTest."""
    packages = missing()
    if packages:
        print(
            f"the tests for aarch64 need Debian's packages {', '.join(packages)}, which are not "
            f"installed: apt-get install {' '.join(packages)}",
            file=sys.stderr,
        )
        return 1
    command = [EMULATOR, "-L", str(SYSTEM), str(build()), "--gtest_brief=1", *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
