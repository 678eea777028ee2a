"""Builds the two native libraries: `_core` (pybind11) and `_twml_ops` (TensorFlow ops).

Everything declarative lives in pyproject.toml; the compile and link plan in native_build.py.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

import native_build  # noqa: E402  (found only once ROOT is on the path)


class NinjaBuildExt(build_ext):
    """Lets ninja compile in parallel and incrementally, then copies what it linked."""

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
