"""Writes twml_ops/_core.pyi from the signatures that pybind11 puts into the docstrings.

make stubs        (python tools/stubs.py [--check])
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from twml_ops import _core

TARGET = Path(__file__).resolve().parents[1] / "twml_ops" / "_core.pyi"
HEAD = '''"""The kernels of twml_ops on NumPy arrays. Written by tools/stubs.py: `make stubs`."""

import collections.abc
from typing import Any

import numpy
import numpy.typing
'''
# What pybind11 accepts, in the words a caller would use.
SIMPLER = (
    (r"typing\.Annotated\[numpy\.typing\.ArrayLike, [\w.]+\]", "numpy.typing.ArrayLike"),
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r"\bnumpy\.ndarray\b", "numpy.typing.NDArray[Any]"),
    (r"-> tuple$", "-> tuple[Any, ...]"),
    (r"(: |-> |^)dict\b(?!\[)", r"\1dict[str, Any]"),
    (r"\bIterable\b(?!\[)", "Iterable[Any]"),
    (r"twml_ops\._core\.", ""),
    (r"9\.999999974752427e-07", "1e-06"),
)


def simplified(signature: str) -> str:
    """In the words a caller would use."""
    for pattern, simpler in SIMPLER:
        signature = re.sub(pattern, simpler, signature)
    return signature


def function(member: Any, indent: str = "") -> str:
    """The stub of a function or method."""
    signature, _, text = member.__doc__.partition("\n")
    signature = simplified(signature)
    signature = re.sub(r"\(self: \w+", "(self", signature)
    return f'{indent}def {signature}:\n{indent}    """{text.strip()}"""\n'


def attribute(name: str, member: Any) -> str:
    """The stub of a method, static method or property of a class."""
    if isinstance(member, property):
        result = simplified((member.fget.__doc__ or "").partition("->")[2].strip()) or "Any"
        text = f'        """{member.__doc__}"""\n' if member.__doc__ else "        ...\n"
        return f"    @property\n    def {name}(self) -> {result}:\n{text}"
    if isinstance(member, staticmethod):
        return "    @staticmethod\n" + function(member.__func__, "    ")
    return function(member, "    ")


def stub() -> str:
    """The whole file."""
    parts = [HEAD]
    for name, member in sorted(vars(_core).items()):
        if name.startswith("_"):
            continue
        if inspect.isclass(member):
            methods = [
                attribute(n, m)
                for n, m in sorted(vars(member).items())
                if n == "__init__" or not n.startswith("_")
            ]
            text = f'class {name}:\n    """{member.__doc__.strip()}"""\n\n'
            parts.append(text + "\n".join(methods))
        elif callable(member):
            parts.append(function(member))
    return "\n".join(parts)


def main() -> int:
    """Writes the file, or with --check tells whether it is as it should be."""
    if "--check" in sys.argv:
        return int(TARGET.read_text() != stub())
    TARGET.write_text(stub())
    return 0


if __name__ == "__main__":
    sys.exit(main())
