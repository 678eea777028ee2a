"""The kernels have the same bits whatever compiler makes them, and no flag lets one decide."""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

import pytest

import native_build
from tests.cuda.build import files_of

TEST = native_build.ROOT / "tests" / "cc" / "kernel_bits_test.cc"
NAMES = [
    *("g++", *(f"g++-{version}" for version in range(12, 17))),
    *("clang++", *(f"clang++-{version}" for version in range(14, 22))),
]
OWN = shlex.split(os.environ.get("CXX", "g++"))[-1]  # make test-cc runs the test with this one
INSTALLED = {os.path.realpath(path): name for name in NAMES if (path := shutil.which(name))}
OTHERS = [
    name for path, name in INSTALLED.items() if path != os.path.realpath(shutil.which(OWN) or "")
]


@dataclass(frozen=True)
class Objects(native_build.Sanitizer):
    """Objects of a compiler, in a folder of their own."""

    @property
    def flags(self):
        return []


def test_no_compiler_may_fuse_products_and_sums():
    flags = native_build.TARGETS
    assert "-ffp-contract=off" in flags["COPTS"]
    everywhere = [*flags["COPTS"], *flags["OPS_COPTS"], *flags["TEST_COPTS"]]
    everywhere += [flag for level in flags["SIMD_COPTS"].values() for flag in level]
    allowed = {"-ffp-contract=off", "-fPIC", "-fno-math-errno", "-fvisibility=hidden"}
    assert {flag for flag in everywhere if flag.startswith("-f")} == allowed


@pytest.mark.slow
@pytest.mark.parametrize("compiler", OTHERS)
def test_every_compiler_makes_kernels_with_the_same_bits(compiler, monkeypatch):
    query = ["pkg-config", "--cflags", "--libs", "gtest_main"]
    if shutil.which(query[0]) is None or subprocess.run(query, capture_output=True).returncode:
        pytest.skip("needs GoogleTest")
    caching = "ccache " if shutil.which("ccache") else ""
    monkeypatch.setenv("CXX", f"{caching}{compiler}")
    objects = Objects(f"compilers/{compiler}")
    ninja = native_build.NinjaFile(native_build.ROOT, objects.name)
    core = native_build.core_objects(ninja, native_build.ROOT, objects, files=files_of(TEST))
    flags = [*native_build.TARGETS["COPTS"], f"-I{native_build.ROOT}"]
    test = ninja.compile(TEST, objects.name, flags)
    libraries = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    program = f"{objects.name}/run"
    ninja.link(program, [*core, test], ["-pthread", *libraries])
    name = objects.name.replace("/", "-")
    [built] = native_build.run_ninja(native_build.ROOT, ninja, name, [program])
    done = subprocess.run([built, "--gtest_brief=1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
