"""Which ops run: the library built for the running TensorFlow, or stock ops in its place."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops.ops import stock
from twml_ops.ops.xla import static_shapes

_HOST = "CPU:0"
_ANYWHERE = contextlib.nullcontext()
_PACKAGE = Path(__file__).resolve().parent.parent
_REBUILD = (
    "Rebuild it for this TensorFlow: run `pip install --no-deps --force-reinstall .` "
    "(or `python setup.py build_ext --inplace`) in the twml_ops source tree."
)
FALLBACK_VARIABLE = "TWML_OPS_FALLBACK"
"""Set to 1, this environment variable runs stock ops even where there is a library."""


class FallbackWarning(RuntimeWarning):
    """The ops run on stock TensorFlow, much slower than the op library would."""


def tag_of(tf_version: str) -> str:
    """`tf2.21` for 2.21.0: minor versions of TensorFlow share no ABI, patches do."""
    major, minor = tf_version.split(".")[:2]
    return f"tf{major}.{minor}"


def path_of(tf_version: str, package: Path = _PACKAGE) -> Path:
    """Where the op library for that TensorFlow is, if it was built."""
    return package / f"_twml_ops.{tag_of(tf_version)}.so"


def load(package: Path = _PACKAGE, tf_version: str = tf.__version__) -> Any:
    """The module of op wrappers.

    Raises:
        ImportError: no library in `package` was built for `tf_version`; the message names
            the versions there are and the command that rebuilds.
    """
    path = path_of(tf_version, package)
    if path.exists():
        with contextlib.suppress(ImportError):
            importlib.import_module("twml_ops._core")  # warns of a bad TWML_OPS_SIMD
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


def load_or_fall_back(package: Path = _PACKAGE, tf_version: str = tf.__version__) -> Any:
    """The module of op wrappers or, where none loads, `stock.library`, after one warning."""
    if os.environ.get(FALLBACK_VARIABLE) == "1":
        return stock.library
    try:
        return load(package, tf_version)
    except ImportError as e:
        warnings.warn(
            f"twml_ops runs on stock TensorFlow ops: the same results, much slower. {e}",
            FallbackWarning,
            stacklevel=2,
        )
        return stock.library


@functools.cache
def _has_accelerator() -> bool:
    """Whether TensorFlow sees a device that it prefers to the host, such as a GPU.

    Asked once: TensorFlow does not change its devices after its first op.
    """
    visible = tf.config.get_visible_devices()
    return any(d.device_type not in ("CPU", "TPU", "TPU_SYSTEM") for d in visible)


class _Library:
    """The op wrappers in force: the loaded ones, or those of the innermost `override` block.

    The op library has kernels for CPUs only. Where TensorFlow has an accelerator too, it would
    place variables there that the ops then cannot reach, so `on_host` says where they belong. Stock
    ops run on any device, and are not confined.
    """

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded
        self._active: ContextVar[Any] = ContextVar("library", default=loaded)

    def __getattr__(self, name: str) -> Any:
        active = self._active.get()
        try:
            op = getattr(active, name)
        except AttributeError:
            if not name.startswith("twml_"):
                raise
            which = "stock ops of static shapes" if self.uses_static_shapes else "stock ops"
            why = stock.LIBRARY_ONLY.get(name, "it is outside of what they are for")
            raise NotImplementedError(
                f"{name} has no stand-in among the {which} that are in force: {why}"
            ) from None
        return self._confined(op) if self.is_host_only else op

    def _confined(self, op: Any) -> Any:
        def on_host(*args: Any, **kwargs: Any) -> Any:
            with tf.device(_HOST):
                return op(*args, **kwargs)

        return on_host

    @property
    def is_host_only(self) -> bool:
        """Whether the ops in force have kernels for the host only, device_scope_of another device."""
        return (
            _has_accelerator()
            and self._active.get() is self.loaded
            and self.loaded is not stock.library
        )

    def on_host(self) -> contextlib.AbstractContextManager[Any]:
        """The device scope of the ops in force and of the variables that they use.

        It keeps the job and the task of the scope around it. Without an accelerator it is none.
        """
        return tf.device(_HOST) if self.is_host_only else _ANYWHERE

    @property
    def uses_static_shapes(self) -> bool:
        """Whether batches keep static shapes, id -1 standing for no entry."""
        return self._active.get() is static_shapes.library

    @contextlib.contextmanager
    def override(self, other: Any) -> Iterator[None]:
        """In the block, and this thread, `other` is in force."""
        token = self._active.set(other)
        try:
            yield
        finally:
            self._active.reset(token)


library = _Library(load_or_fall_back())


def is_native() -> bool:
    """Whether the op library is loaded, not its stand-in of stock ops."""
    return library.loaded is not stock.library


def require_native(what: str) -> None:
    """Refuses what stock ops are not for.

    Raises:
        ImportError: stock ops stand in for the op library.
    """
    if not is_native():
        raise ImportError(
            f"{what} needs the op library of twml_ops, but stock TensorFlow ops stand in for it; "
            "they are for training in a single process, export and XLA. "
            + (
                f"Unset {FALLBACK_VARIABLE}."
                if os.environ.get(FALLBACK_VARIABLE) == "1"
                else _REBUILD
            )
        )
