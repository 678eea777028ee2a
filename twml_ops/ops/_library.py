"""The active ops: the library built for the running TensorFlow, or stock ops in its place."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops.ops import stock
from twml_ops.ops._cuda_library import CudaKernels
from twml_ops.ops.xla import static_shapes

_HOST = "CPU:0"
_ANYWHERE = contextlib.nullcontext()
_PACKAGE = Path(__file__).resolve().parent.parent
_REBUILD = (
    "Rebuild it for this TensorFlow: run `pip install --no-deps --force-reinstall .` "
    "(or `python setup.py build_ext --inplace`) in the twml_ops source tree."
)
FALLBACK_VARIABLE = "TWML_OPS_FALLBACK"
"""With this environment variable set to 1, stock ops run even if there is a library."""


class FallbackWarning(RuntimeWarning):
    """The ops run on stock TensorFlow ops, which are much slower than the op library."""


def tag_of(tf_version: str) -> str:
    """The tag of a TensorFlow version in library names: `tf2.21` for 2.21.0.

    Minor versions of TensorFlow have different ABIs; patch versions share one.
    """
    major, minor = tf_version.split(".")[:2]
    return f"tf{major}.{minor}"


def path_of(tf_version: str, package: Path = _PACKAGE) -> Path:
    """The path of the op library for a TensorFlow version, whether it has been built or not."""
    return package / f"_twml_ops.{tag_of(tf_version)}.so"


def load(package: Path = _PACKAGE, tf_version: str = tf.__version__) -> Any:
    """Loads the op library.

    Args:
        package: Folder that contains the library.
        tf_version: Version of the running TensorFlow.

    Returns:
        The module of op wrappers.

    Raises:
        ImportError: `package` has no library for `tf_version`, or the library does not load. The
            message names the versions that have been built and the command that rebuilds.
    """
    path = path_of(tf_version, package)
    if path.exists():
        with contextlib.suppress(ImportError):
            importlib.import_module("twml_ops._core")  # warns about an invalid TWML_OPS_SIMD
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
    """Loads the op library, or falls back to stock ops with one warning.

    Args:
        package: Folder that contains the library.
        tf_version: Version of the running TensorFlow.

    Returns:
        The module of op wrappers, or `stock.library`.
    """
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
    """Whether TensorFlow has a visible device that it prefers to the host, such as a GPU.

    The result is cached, since TensorFlow does not change its devices after its first op.
    """
    visible = tf.config.get_visible_devices()
    return any(d.device_type not in ("CPU", "TPU", "TPU_SYSTEM") for d in visible)


class _OnHost:
    """Says to a `tf.distribute.MirroredStrategy` that it shall create a variable on the host.

    A strategy can create a variable on the devices of another one, of which it takes `_devices`.
    """

    def __init__(self, num_replicas: int) -> None:
        self._devices = [_HOST] * num_replicas


def _create_on_host(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    strategy = tf.distribute.get_strategy()
    if type(strategy) is tf.distribute.MirroredStrategy:
        kwargs.setdefault("colocate_with", _OnHost(strategy.num_replicas_in_sync))
    return next_creator(**kwargs)


@contextlib.contextmanager
def _host_scope() -> Iterator[None]:
    with tf.device(_HOST):
        if tf.distribute.has_strategy():  # it would create variables on its own devices
            with tf.variable_creator_scope(_create_on_host):
                yield
        else:
            yield


class _Library:
    """The active op wrappers: the loaded ones, or the ones that the innermost `override` block
    sets.

    Most ops of the library have kernels for CPUs only. With an accelerator TensorFlow would by
    default place variables there, where these ops cannot reach them. `on_host` is the device scope
    that prevents it. Stock ops run on any device and need no scope.

    A table may be on a CUDA GPU if `cuda` has kernels. Its ops run there, in the scope `beside`.
    """

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded
        self.cuda = CudaKernels(None if loaded is stock.library else path_of(tf.__version__))
        self._active: ContextVar[Any] = ContextVar("library", default=loaded)
        self._device: ContextVar[str] = ContextVar("device", default=_HOST)
        self._table_device: ContextVar[str | None] = ContextVar("table_device", default=None)

    def __getattr__(self, name: str) -> Any:
        active = self._active.get()
        try:
            op = getattr(active, name)
        except AttributeError:
            if not name.startswith("twml_"):
                raise
            active_ops = "stock ops of static shapes" if self.uses_static_shapes else "stock ops"
            reason = stock.LIBRARY_ONLY.get(name, "they do not support this use")
            raise NotImplementedError(
                f"{name} is not among the active {active_ops}: {reason}"
            ) from None
        return self._run_on_host(op) if self.is_host_only else op

    def _run_on_host(self, op: Any) -> Any:
        def on_host(*args: Any, **kwargs: Any) -> Any:
            with tf.device(self._device.get()):
                return op(*args, **kwargs)

        return on_host

    @property
    def is_host_only(self) -> bool:
        """Whether the active ops run on the host only, while TensorFlow has other devices."""
        return _has_accelerator() and self.is_op_library

    def on_host(self) -> contextlib.AbstractContextManager[Any]:
        """The device scope for the active ops and the variables that they use.

        It keeps the job and the task of the enclosing scope. A `tf.distribute.MirroredStrategy`
        creates the variables of its replicas on the host in it. Where `is_host_only` is False it
        does nothing.
        """
        return _host_scope() if self.is_host_only else _ANYWHERE

    @contextlib.contextmanager
    def beside(self, device: str | None) -> Iterator[None]:
        """Runs ops in the block on `device` if it is a GPU, and on the host otherwise.

        Args:
            device: The device of a table, or of a product with it.
        """
        if not self.is_on_gpu(device):
            yield
            return
        token = self._device.set(str(device))
        try:
            yield
        finally:
            self._device.reset(token)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The device scope for stock ops next to ops of this library (see `beside`)."""
        return tf.device(self.device) if self.runs_on_gpu else self.on_host()

    @property
    def device(self) -> str:
        """Where ops that have kernels for more than the host run now (see `beside`)."""
        return self._device.get()

    @property
    def runs_on_gpu(self) -> bool:
        """Whether that is a GPU."""
        return self.device != _HOST

    def is_on_gpu(self, device: str | None) -> bool:
        """Whether the active ops on tables run on `device`, which is a GPU."""
        if not self.is_host_only or tf.DeviceSpec.from_string(device or "").device_type != "GPU":
            return False
        return self.cuda.are_available()

    @contextlib.contextmanager
    def tables_on(self, device: str) -> Iterator[None]:
        """Creates the tables of the block on `device`."""
        token = self._table_device.set(device)
        try:
            yield
        finally:
            self._table_device.reset(token)

    def table_scope(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """A function that enters the device scope of the tables that are created now."""
        device = self._table_device.get()
        return self.on_host if device is None else functools.partial(tf.device, device)

    @property
    def uses_static_shapes(self) -> bool:
        """Whether batches keep static shapes, with id -1 as padding (see `ops.xla_compatible`)."""
        return self._active.get() is static_shapes.library

    @property
    def is_op_library(self) -> bool:
        """Whether the op library computes the active ops, and not a replacement of it."""
        return self._active.get() is self.loaded and self.loaded is not stock.library

    @property
    def marks_rows(self) -> bool:
        """Whether the active ops record which rows of a table they write (`ops.ChangedRows`)."""
        return self.is_op_library

    @contextlib.contextmanager
    def override(self, other: Any) -> Iterator[None]:
        """Activates `other` in the block, for the current thread."""
        token = self._active.set(other)
        try:
            yield
        finally:
            self._active.reset(token)


library = _Library(load_or_fall_back())


def is_native() -> bool:
    """Whether the op library is loaded, not its replacement of stock ops."""
    return library.loaded is not stock.library


def require_native(what: str) -> None:
    """Raises if the op library is not loaded.

    Args:
        what: What needs the library, for the message.

    Raises:
        ImportError: Stock ops replace the op library.
    """
    if not is_native():
        raise ImportError(
            f"{what} needs the op library of twml_ops, but stock TensorFlow ops replace it. They "
            "support training in a single process, export and XLA. "
            + (
                f"Unset {FALLBACK_VARIABLE}."
                if os.environ.get(FALLBACK_VARIABLE) == "1"
                else _REBUILD
            )
        )
