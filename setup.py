"""Builds the two native libraries: `_core` (pybind11) and `_twml_ops` (TensorFlow ops).

All metadata is in pyproject.toml; native_build.py has the compile and link commands.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

import native_build  # noqa: E402  (needs ROOT on the path)


class NinjaBuildExt(build_ext):
    """Builds with ninja, in parallel and incrementally, and copies the libraries."""

    def run(self) -> None:
        libraries = native_build.build(ROOT)
        inplace = self.inplace or getattr(self, "editable_mode", False)
        package = ROOT / "twml_ops" if inplace else Path(self.build_lib) / "twml_ops"
        self.mkpath(str(package))
        for library in libraries:
            self.copy_file(str(library), str(package / library.name))


setup(
    ext_modules=[Extension("twml_ops._core", sources=[])],
    cmdclass={"build_ext": NinjaBuildExt},
)
