"""The stub of `_core` agrees with the library. `make stubs` writes it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_stub_is_up_to_date():
    done = subprocess.run([sys.executable, "tools/stubs.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run `make stubs`"
