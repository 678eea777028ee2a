"""Installs the wheel in new environments outside the checkout and tests it there.

    python tools/test_wheel.py dist/twml_ops-….whl 2.15 2.18 2.21 --fallback 2.14

With each TensorFlow, selfcheck must find the op library and the loss of the README's example must
decrease. The wheel has no library for the versions of --fallback: there must be one warning, and
the example must train with stock ops.
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
fallback_warnings = [w for w in caught if w.category.__name__ == "FallbackWarning"]
import twml_ops
assert "site-packages" in twml_ops.__file__, twml_ops.__file__
losses = scope["model"].history.history["loss"]
assert losses[-1] < losses[0], losses
assert len(fallback_warnings) == int(sys.argv[2]), fallback_warnings
print("the README's example:", losses, "warnings:", len(fallback_warnings))
"""


def check(wheel: Path, version: str, fallback: bool) -> None:
    """Installs the wheel with one TensorFlow and tests it.

    Args:
        wheel: the wheel.
        version: the minor version of TensorFlow, for example "2.18".
        fallback: whether the wheel has no library for this version.

    Raises:
        subprocess.CalledProcessError: a command failed. Its output is on the terminal.
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
    """Checks all versions on the command line."""
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
