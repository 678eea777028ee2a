"""Loads the TF op library built for the running TensorFlow, or says what to do."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import tensorflow as tf

_PACKAGE = Path(__file__).resolve().parent.parent
_REBUILD = (
    "Rebuild it for this TensorFlow: run `pip install --no-deps --force-reinstall .` "
    "(or `python setup.py build_ext --inplace`) in the twml_ops source tree."
)


def tag_of(tf_version: str) -> str:
    """`tf2.21` for 2.21.0: minor versions of TensorFlow share no ABI, patches do."""
    major, minor = tf_version.split(".")[:2]
    return f"tf{major}.{minor}"


def load(package: Path = _PACKAGE, tf_version: str = tf.__version__) -> ModuleType:
    """The module of op wrappers.

    Raises:
        ImportError: no library in `package` was built for `tf_version`; the message names
            the versions there are and the command that rebuilds.
    """
    tag = tag_of(tf_version)
    path = package / f"_twml_ops.{tag}.so"
    if path.exists():
        try:
            return tf.load_op_library(str(path))
        except tf.errors.OpError as e:
            raise ImportError(
                f"{path.name} does not load into TensorFlow {tf_version}: {e}. {_REBUILD}"
            ) from e
    built = sorted(p.name.split(".", 1)[1][2:-3] for p in package.glob("_twml_ops.tf*.so"))
    found = f"was built for TensorFlow {', '.join(built)}" if built else "has not been built"
    raise ImportError(
        f"The op library of twml_ops {found}, but TensorFlow {tf_version} is running. {_REBUILD}"
    )


library = load()
