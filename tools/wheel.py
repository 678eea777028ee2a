"""Builds a wheel with op libraries for several TensorFlows, and gives it a manylinux tag.

python tools/wheel.py dist .cache/tensorflow/2.15 .cache/tensorflow/2.21 …
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# GLIBCXX minor version → minor glibc version of the oldest manylinux policy that has it, from the
# policies of auditwheel.
GLIBC_OF_GLIBCXX = {24: 28, 25: 30, 26: 31, 27: 31, 28: 31, 29: 34, 30: 35, 31: 38, 32: 38, 33: 39}
OLDEST_GLIBC = 17


def glibc_of(symbols: str) -> int:
    """The minor version of glibc 2 that a library needs, from the output of `objdump -T`."""
    glibc = [int(v) for v in re.findall(r"\bGLIBC_2\.(\d+)", symbols)]
    glibcxx = [int(v) for v in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", symbols)]
    newer = [GLIBC_OF_GLIBCXX.get(v, 99) for v in glibcxx if v >= min(GLIBC_OF_GLIBCXX)]
    return max([OLDEST_GLIBC, *glibc, *newer])


def platform_tag(wheel: Path) -> str:
    """The oldest manylinux tag that all libraries in a wheel are compatible with."""
    needed = OLDEST_GLIBC
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            command = ["objdump", "-T", archive.extract(name, folder)]
            found = subprocess.run(command, capture_output=True, text=True, check=True)
            needed = max(needed, glibc_of(found.stdout))
    machine = wheel.stem.rsplit("-", 1)[1].removeprefix("linux_")
    return f"manylinux_2_{needed}_{machine}"


def build(out: Path, tensorflows: list[Path]) -> Path:
    """Builds the wheel for these unpacked TensorFlows in the folder `out` and returns its path."""
    for leftovers in (*ROOT.glob("build/lib*"), *ROOT.glob("build/bdist*")):
        shutil.rmtree(leftovers)  # setuptools would pack old files
    environment = dict(os.environ)
    environment["TWML_OPS_TENSORFLOWS"] = os.pathsep.join(str(t.resolve()) for t in tensorflows)
    with tempfile.TemporaryDirectory() as made:
        flags = ["-q", "--no-deps", "--no-build-isolation", "-w", made]
        command = [sys.executable, "-m", "pip", "wheel", *flags, str(ROOT)]
        subprocess.run(command, env=environment, check=True)
        (wheel,) = Path(made).glob("*.whl")
        tags = [sys.executable, "-m", "wheel", "tags", "--platform-tag", platform_tag(wheel)]
        subprocess.run([*tags, str(wheel)], check=True, stdout=subprocess.DEVNULL)
        (tagged,) = Path(made).glob("*manylinux*.whl")
        out.mkdir(parents=True, exist_ok=True)
        (out / tagged.name).write_bytes(tagged.read_bytes())
    return out / tagged.name


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), [Path(t) for t in sys.argv[2:]]))
