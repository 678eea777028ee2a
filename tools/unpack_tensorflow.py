"""Extracts the headers and the framework library of a TensorFlow from its wheel.

They are all that compiling the op library needs.

python tools/unpack_tensorflow.py 2.18 .cache/tensorflow/2.18
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WANTED = ("tensorflow/include/", "tensorflow/libtensorflow_framework.so")


def unpack(version: str, folder: Path) -> None:
    """Downloads tensorflow-cpu `version`.* and extracts its headers and library to `folder`."""
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", downloads]
        subprocess.run([*command, f"tensorflow-cpu=={version}.*"], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial, [n for n in archive.namelist() if n.startswith(WANTED)])
        (partial / "VERSION").write_text(wheel.name.split("-")[1] + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


if __name__ == "__main__":
    unpack(sys.argv[1], Path(sys.argv[2]))
