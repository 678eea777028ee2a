"""The program `fatbinary` that clang calls to put the code of several GPUs into one file.

CUDA 12 has no wheel with that program, but one with the library that it consists of, nvFatbin. The
environment variable NVFATBIN names that library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def fields(image: str) -> dict[str, str]:
    """The fields of an option such as `profile=sm_80,file=a.o`."""
    return dict(part.split("=", 1) for part in image.split(","))


class FatBinary:
    """A file with the code of several GPUs.

    Args:
        library: Path of the nvFatbin library.
    """

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._handle = ctypes.c_void_p()
        options = (ctypes.c_char_p * 2)(b"-64", b"-compress=true")
        self._call("Create", ctypes.byref(self._handle), options, ctypes.c_size_t(2))

    def add(self, path: Path, arch: str, is_ptx: bool) -> None:
        """Adds the code for a GPU, for example of arch "80"."""
        code = path.read_bytes()
        name = path.name.encode()
        if is_ptx:
            code = code.rstrip(b"\0") + b"\0"
            last: tuple[bytes, ...] = (name, b"")
        else:
            last = (name,)
        self._call(
            "AddPTX" if is_ptx else "AddCubin",
            self._handle,
            code,
            ctypes.c_size_t(len(code)),
            arch.encode(),
            *last,
        )

    def write(self, path: Path) -> None:
        """Writes the file."""
        size = ctypes.c_size_t()
        self._call("Size", self._handle, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call("Get", self._handle, data)
        path.write_bytes(data.raw)
        self._call("Destroy", ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, f"nvFatbin{name}")(*arguments)
        if code != 0:
            raise RuntimeError(f"nvFatbin{name} failed with code {code}")


def main(arguments: list[str]) -> None:
    """Understands the options that clang passes."""
    fatbinary = FatBinary(os.environ["NVFATBIN"])
    output = Path(arguments[arguments.index("--create") + 1])
    for argument in arguments:
        if not argument.startswith(("--image=", "--image3=")):
            continue
        image = fields(argument.split("=", 1)[1])
        profile = (
            image.get("profile") or ("compute_" if image["kind"] == "ptx" else "sm_") + image["sm"]
        )
        kind, _, arch = profile.partition("_")
        fatbinary.add(Path(image["file"]), arch, is_ptx=kind == "compute")
    fatbinary.write(output)


if __name__ == "__main__":
    main(sys.argv[1:])
