"""Files that are on the disk, or not there, after the process or the machine has stopped."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_NO_ATOMIC_RENAME = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EINVAL)
_NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EROFS, errno.EBADF)


def sync(path: Path) -> None:
    """Waits until a file or a folder is on the disk, where the file system can do that.

    Raises:
        OSError: the disk is full or fails.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as e:
        if e.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(handle)


def publish(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name, and renames it when it is on the disk.

    A file system that does not rename gets the file under its final name directly. A reader can
    then see a part of it, so the content needs a checksum.

    Args:
        path: the file, which appears with all of its content.
        content: all bytes.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        _write(part, content)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    try:
        os.replace(part, path)
    except OSError as e:
        if e.errno not in _NO_ATOMIC_RENAME:
            raise
        _write(path, content)
        part.unlink(missing_ok=True)
    sync(path.parent)


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Holds the lock of a file, which ends with the process.

    Args:
        path: the file, which is created.

    Yields:
        Whether this process has the lock. True as well where the file system has no locks.

    Raises:
        OSError: the file cannot be created.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        yield _lock(handle)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here, as on some network file systems
        return True
    return True
