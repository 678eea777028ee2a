"""How TensorFlow uses the processor and the memory of a process that runs a command.

Its idle threads look for work some thousand times before they sleep. In steps of 256 examples,
whose ops are short, that is a notable part of the CPU time of a training.

Under Python 3.11 the first `tf.data.Dataset.from_generator` of a process makes glibc return every
block of 128 KiB to the system when it is freed. Arrays of a few megabytes, such as NumPy's
temporary ones, then cost a page fault for every 4 KiB each time. Without that glibc raises the
bound to the size of the blocks that are freed, up to 32 MiB.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from twml_ops import _import_hooks

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h of glibc
_LARGEST_KEPT = 32 << 20  # bytes, the largest value that glibc takes
_MALLOC_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")

_is_command = False


def prepare() -> None:
    """Makes this process one that runs a command. Call it before TensorFlow is imported."""
    global _is_command
    _is_command = True
    _import_hooks.import_within(_with_sleeping_threads)


def keep_freed_memory() -> None:
    """Makes `malloc` keep freed blocks of up to 32 MiB, in a process that runs a command.

    Call it after TensorFlow has made the first dataset of a generator. Environment variables for
    `malloc` have precedence. It does nothing with other C libraries than glibc.
    """
    global _is_command
    if not _is_command:
        return
    _is_command = False  # once is enough
    if any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
            library.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST_KEPT)


@contextmanager
def _with_sleeping_threads() -> Iterator[None]:
    """Imports TensorFlow in the block; threads that it starts later sleep when they are idle."""
    yield
    # TensorFlow has no public function for it. Without these names its threads look for work.
    with suppress(ImportError, AttributeError):
        import tensorflow as tf
        from tensorflow.python.eager.context import context

        config = tf.compat.v1.ConfigProto()
        config.experimental.disable_thread_spinning = True
        if context()._config is None:
            context()._config = config
