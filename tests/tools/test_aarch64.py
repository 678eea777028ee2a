"""The tests for aarch64, which few machines have the compiler for."""

import subprocess
import sys
from pathlib import Path

from tools import aarch64_tests

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_not_installed_is_named_with_its_package():
    command = [sys.executable, str(ROOT / "tools" / "aarch64_tests.py")]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "apt-get install g++-aarch64-linux-gnu qemu-user" in done.stderr


def test_only_the_baseline_is_compiled_and_in_a_folder_of_its_own():
    cross = aarch64_tests.Cross()
    assert aarch64_tests.native_build.simd_levels("aarch64") == {"baseline": []}
    assert (cross.prefix, cross.flags) == ("aarch64/", [])
