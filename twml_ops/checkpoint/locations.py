"""Where checkpoints are: in a folder of this machine, or in one of a file system of TensorFlow."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import tensorflow as tf

from twml_ops import _publish

_REMOTE = "://"  # as in "gs://bucket/folder", which a `Path` would change


class RemotePath:
    """A file or a folder of a file system that TensorFlow reads and writes, such as gs://.

    It has the methods of `Path` that checkpoints need, and raises the same errors.

    Args:
        address: with its scheme.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the address."""
        return posixpath.basename(self._address)

    @property
    def parent(self) -> RemotePath:
        """The folder that holds this file or folder."""
        return RemotePath(posixpath.dirname(self._address))

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(posixpath.join(self._address, name))

    def __str__(self) -> str:
        return self._address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(other) == self._address

    def __hash__(self) -> int:
        return hash(self._address)

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        with os_errors():
            return bool(tf.io.gfile.exists(self._address))

    def is_dir(self) -> bool:
        """Whether there is such a folder."""
        with os_errors():
            return bool(tf.io.gfile.isdir(self._address))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yields what is in the folder."""
        with os_errors():
            names = tf.io.gfile.listdir(self._address)
        return (self / name.rstrip("/") for name in names)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Creates the folder, with those above it: object stores do not tell them apart.

        Args:
            parents: not used.
            exist_ok: whether it may be there already.
        """
        if not exist_ok and self.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))
        with os_errors():
            tf.io.gfile.makedirs(self._address)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the file.

        Args:
            missing_ok: whether there may be none.
        """
        if not missing_ok or self.exists():
            with os_errors():
                tf.io.gfile.remove(self._address)


Location = Path | RemotePath


def location(path: str | os.PathLike[str] | RemotePath) -> Location:
    """The place that a path or an address names.

    Args:
        path: the path of this machine, or with the scheme of a file system of TensorFlow.
    """
    if isinstance(path, RemotePath):
        return path
    return RemotePath(str(path)) if _REMOTE in str(path) else Path(path)


def open_file(path: Location, mode: str = "rb") -> IO[Any]:
    """Opens a file without a buffer, to read or to write bytes.

    Args:
        path: the file.
        mode: "rb" or "wb".

    Raises:
        OSError: the file cannot be opened.
    """
    if isinstance(path, Path):
        return open(path, mode, buffering=0)
    with os_errors():
        file: Any = tf.io.gfile.GFile(str(path), mode)
        if mode == "rb":
            file.size()  # which opens it
        return file


def read_bytes(path: Location) -> bytes:
    """The content of a file.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be read.
    """
    with os_errors(), open_file(path) as file:
        return bytes(file.read())


def identity(path: Location) -> tuple[int, int] | None:
    """What tells a file or folder that is open from another one that has its name later.

    Args:
        path: the file or folder.

    Returns:
        The numbers of its device and of itself; None: there is none, or it is in a store.
    """
    try:
        found = os.stat(str(path))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def make_folders(path: Location) -> None:
    """Creates a folder, and those above it, which are on the disk then.

    Args:
        path: the folder, which may be there.

    Raises:
        OSError: it cannot be created.
    """
    if isinstance(path, Path):
        _publish.make_folders(path)
    else:
        path.mkdir(parents=True, exist_ok=True)


def size_of(path: Location) -> int:
    """The bytes of a file.

    Args:
        path: the file.

    Raises:
        OSError: there is no such file.
    """
    if isinstance(path, Path):
        return path.stat().st_size
    with os_errors():
        return int(tf.io.gfile.stat(str(path)).length)


def sync(path: Location) -> None:
    """Waits until a file or a folder is on the disk, where the file system can do that.

    Args:
        path: the file or the folder.

    Raises:
        OSError: the disk is full or fails.
    """
    if isinstance(path, Path):
        _publish.sync(path)


def write_file(path: Location, content: bytes) -> None:
    """Writes a file, which appears with all of its content where the file system renames at once.

    Args:
        path: the file.
        content: all bytes.

    Raises:
        OSError: the file cannot be written.
    """
    if isinstance(path, Path):
        _publish.write_file(path, content)
        return
    part = path.parent / f"{path.name}.part"
    with os_errors():
        with open_file(part, "wb") as file:
            file.write(content)
        tf.io.gfile.rename(str(part), str(path), overwrite=True)


def remove_tree(path: Location) -> None:
    """Removes a folder with all that it has, as far as that is possible.

    Args:
        path: the folder.
    """
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(tf.errors.OpError):
        tf.io.gfile.rmtree(str(path))


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Turns errors of TensorFlow's file systems into Python's errors."""
    try:
        yield
    except tf.errors.NotFoundError as e:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), e.message) from e
    except tf.errors.OpError as e:
        raise OSError(errno.EIO, e.message) from e
