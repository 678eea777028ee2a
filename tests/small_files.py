"""A limit for the size of files, as a disk that is full."""

import contextlib
import resource
import signal


@contextlib.contextmanager
def small_files(limit):
    """No file can be written beyond some bytes; the error is that of a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
