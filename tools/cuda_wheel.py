"""Packs the library of CUDA kernels into a wheel of its own, which `pip` installs beside twml_ops.

    python tools/cuda_wheel.py twml_ops/libtwml_cuda.so dist

The wheel serves every Python and TensorFlow. Machines without a GPU do not need it.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

from wheel.wheelfile import WheelFile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.wheel import glibc_of  # noqa: E402

NAME = "twml_ops_cuda"
LICENCES = ("LICENSE", "NOTICE", "THIRD_PARTY_LICENSES")


def build(library: Path, out: Path) -> Path:
    """Writes the wheel.

    Args:
        library: The library that tools/cuda_library.py builds.
        out: Folder of the wheel.

    Returns:
        The path of the wheel.
    """
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    if version is None:
        raise ValueError("pyproject.toml has no version")
    symbols = subprocess.run(
        ["objdump", "-T", str(library)], capture_output=True, text=True, check=True
    ).stdout
    tag = f"py3-none-manylinux_2_{glibc_of(symbols)}_{platform.machine()}"
    folder = f"{NAME}-{version[1]}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version[1]}\n"
        "Summary: CUDA kernels of twml_ops\nLicense: Apache-2.0\n"
        + "".join(f"License-File: {licence}\n" for licence in LICENCES)
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{NAME}-{version[1]}-{tag}.whl"
    path.unlink(missing_ok=True)
    with WheelFile(path, "w") as archive:
        archive.writestr(f"{NAME}/__init__.py", '"""The CUDA kernels of twml_ops."""\n')
        archive.write(str(library), f"{NAME}/libtwml_cuda.so")
        archive.writestr(f"{folder}/METADATA", metadata)
        for licence in LICENCES:
            archive.write(str(ROOT / licence), f"{folder}/licenses/{licence}")
        archive.writestr(
            f"{folder}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\nTag: {tag}\n",
        )
    return path


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
