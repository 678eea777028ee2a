"""Installs the wheel in bare environments and uses it there, outside the checkout.

    python tools/test_wheel.py dist/twml_ops-….whl 2.15 2.18 2.21 --fallback 2.14

With each TensorFlow: selfcheck must find the op library, and the README's example must learn. With
the one of --fallback, for which the wheel has no library, stock ops must stand in: one warning,
and the same example learns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

EXAMPLE = """
import re, sys, warnings
code, = re.findall(r"^```python\\n(.*?)^```", open(sys.argv[1]).read(), re.DOTALL | re.MULTILINE)
scope = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec(code, scope)
falls = [w for w in caught if w.category.__name__ == "FallbackWarning"]
import twml_ops
assert "site-packages" in twml_ops.__file__, twml_ops.__file__
losses = scope["model"].history.history["loss"]
assert losses[-1] < losses[0], losses
assert len(falls) == int(sys.argv[2]), falls
print("the README's example:", losses, "warnings:", len(falls))
"""


def check(wheel: Path, version: str, fallback: bool) -> None:
    """Installs and uses the wheel with one TensorFlow.

    Raises:
        subprocess.CalledProcessError: something does not work; its output is shown.
    """
    start = time.monotonic()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> None:
            subprocess.run(command, cwd=folder, env=environment, check=True)

        run(sys.executable, "-m", "venv", "bare")
        python = str(Path(folder, "bare", "bin", "python"))
        run(python, "-m", "pip", "install", "-q", f"tensorflow-cpu=={version}.*", str(wheel))
        installed = time.monotonic()
        run(python, "-m", "twml_ops.selfcheck", *([] if fallback else ["--require-library"]))
        run(python, "-c", EXAMPLE, str(ROOT / "README.md"), str(int(fallback)))
        end = time.monotonic()
    print(
        f"TensorFlow {version}{' (fallback)' if fallback else ''}: installed in "
        f"{installed - start:.0f} s, checked in {end - installed:.0f} s",
        flush=True,
    )


def main() -> None:
    """Checks every version asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--fallback", nargs="*", default=[])
    arguments = parser.parse_args()
    for fallback, versions in ((False, arguments.versions), (True, arguments.fallback)):
        for version in versions:
            check(arguments.wheel.resolve(), version, fallback)


if __name__ == "__main__":
    main()
