"""Files of examples, on this machine or in a store of objects, and what readers of columns share.

Readers get bytes from a `File` only, so nothing else depends on where a file is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from twml_ops.data import remote
from twml_ops.data.block import Array, Block, Numbers, Rows
from twml_ops.data.errors import DataError
from twml_ops.data.schema import Schema

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
}
"""The kind of the files whose names end so, before a .gz."""


OF_LABELS = (
    "; write 1 for what a prediction is the probability of, and 0 for the others, or name its "
    "value: `--positive-label VALUE`"
)
"""The end of the error of a label."""


class File(ABC):
    """A file of examples, which must stay as it is while it is read.

    Args:
        path: its path or URI, for messages.
        size: its bytes.

    Attributes:
        path: its path or URI.
        size: its bytes.
        is_remote: whether each read is a request to a store.
    """

    is_remote = False

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size

    def __str__(self) -> str:
        return self.path

    @abstractmethod
    def _open(self) -> pa.NativeFile:
        """The file at its beginning."""

    @abstractmethod
    def check(self) -> None:
        """Raises an error if the file is not what it was when it was first seen.

        Raises:
            FileNotFoundError: it is gone.
            DataError: it has changed, or the store cannot be reached.
        """

    @contextlib.contextmanager
    def reading(self) -> Iterator[pa.NativeFile]:
        """Opens the file, and checks after the block that it has not been replaced meanwhile.

        If the file has changed, this error also replaces an exception of the block, since a file
        that becomes shorter looks damaged to its reader.

        Yields:
            The file, which can be read and sought.

        Raises:
            FileNotFoundError: it is gone.
            DataError: it has changed, or the store cannot be reached.
        """
        with contextlib.closing(self._open()) as stream:
            try:
                yield stream
            except Exception as e:
                self.check()
                explained = self._explained(e)
                if explained is e:
                    raise
                raise explained from e
            self.check()

    def _explained(self, error: Exception) -> Exception:
        return error

    def _changed(self) -> DataError:
        return DataError(
            f"{self.path}: the file has changed since it was first read; it must stay as it is, "
            "start again"
        )


class _LocalFile(File):
    def __init__(self, path: str) -> None:
        self._place = Path(path).expanduser()
        self._seen = self._state()
        super().__init__(path, self._seen[0])

    def _state(self) -> tuple[int, int]:
        state = self._place.stat()
        return state.st_size, state.st_mtime_ns

    def _open(self) -> pa.NativeFile:
        self.check()
        return pa.OSFile(str(self._place))

    def check(self) -> None:
        if not self._place.exists():
            raise FileNotFoundError(f"{self.path}: no such file")
        if self._state() != self._seen:
            raise self._changed()


class _RemoteFile(File):
    is_remote = True

    def __init__(self, path: str, size: int, store: Any) -> None:
        super().__init__(path, size)
        self._store = store
        self._seen: tuple[int, object] | None = None  # since the first look at it

    def _open(self) -> pa.NativeFile:
        try:
            stream = self._store.open_input_file(remote.key_of(self.path))
            state = self._state(stream)
        except FileNotFoundError as e:
            if self._seen is None:
                raise remote.explained(self.path, e) from e
            raise FileNotFoundError(f"{self.path}: the object was deleted meanwhile") from e
        except (OSError, pa.ArrowException) as e:
            raise remote.explained(self.path, e) from e
        self._seen = self._seen or state
        if state != self._seen or state[0] != self.size:
            stream.close()
            raise self._changed()
        return stream

    def _state(self, stream: pa.NativeFile) -> tuple[int, object]:
        """Size and version of the object that was opened."""
        about = stream.metadata() or {}
        version: object = about.get("ETag") or about.get("Last-Modified")
        if version is None:
            version = self._store.get_file_info(remote.key_of(self.path)).mtime_ns
        return stream.size(), version

    def check(self) -> None:
        self._open().close()

    def _explained(self, error: Exception) -> Exception:
        return remote.explained(self.path, error) if remote.is_of_store(error) else error


def files_of(pattern: str) -> list[File]:
    """The files that a path, URI or pattern names, sorted; of a folder all files in it.

    Those whose names, or folders' names, begin with `_` or `.` are left out of a folder, as are the
    marks that Hadoop and Spark write.

    Raises:
        FileNotFoundError: there are none.
        DataError: a store cannot be reached, or denies access.
    """
    if remote.is_remote(pattern):
        return _remote_files(pattern)
    pattern = named(pattern)
    found = [pattern] if Path(pattern).exists() else glob(pattern, recursive=True)
    files = set()
    for path in map(Path, found):
        if path.is_file():
            files.add(str(path))
        elif path.is_dir():
            inside = (p for p in path.rglob("*") if p.is_file())
            files.update(str(p) for p in inside if not _is_mark(p.relative_to(path)))
    if not files:
        what = "no files in this folder" if Path(pattern).is_dir() else "no such file"
        raise FileNotFoundError(f"{pattern}: {what}")
    return [_LocalFile(path) for path in sorted(files)]


def file_at(path: str) -> File:
    """The file at a path or URI.

    Raises:
        FileNotFoundError: nothing is there.
        DataError: it is a folder, or a store cannot be reached or denies access.
    """
    if remote.is_remote(path):
        found = _remote_files(path)
        if len(found) == 1 and found[0].path == path:
            return found[0]
        raise DataError(f"{path}: expected a file, got a folder or pattern")
    file = Path(path).expanduser()
    if not file.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not file.is_file():
        raise DataError(f"{path}: expected a file, got a folder or device")
    return _LocalFile(path)


def named(pattern: str) -> str:
    """A path or pattern as `files_of` writes the paths of files."""
    return pattern if remote.is_remote(pattern) else str(Path(pattern).expanduser())


def _remote_files(uri: str) -> list[File]:
    """`files_of` for a URI. The keys of a store are taken as paths with folders."""
    from pyarrow import fs

    store, key = remote.store_of(uri), remote.key_of(uri)
    scheme = uri.partition("://")[0]
    try:
        about = store.get_file_info(key)
        if about.type == fs.FileType.File:
            return [_RemoteFile(uri, about.size, store)]
        is_folder = about.type == fs.FileType.Directory
        parts = PurePosixPath(key).parts
        fixed = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
        base = key if is_folder else "/".join(parts[:fixed])
        bucket = parts[0]
        if not is_folder and store.get_file_info(bucket).type == fs.FileType.NotFound:
            raise FileNotFoundError(f"{uri}: there is no bucket `{bucket}`")
        if not is_folder and fixed == len(parts):
            raise FileNotFoundError(f"{uri}: no such object or folder")
        listed = store.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
    except FileNotFoundError as e:
        raise (e if uri in str(e) else remote.explained(uri, e)) from None
    except (OSError, pa.ArrowException) as e:
        raise remote.explained(uri, e) from e
    pattern = () if is_folder else parts[fixed:]
    files = [
        _RemoteFile(f"{scheme}://{each.path}", each.size, store)
        for each in listed
        if each.type == fs.FileType.File
        and _matches(PurePosixPath(each.path).parts[len(PurePosixPath(base).parts) :], pattern)
    ]
    if not files:
        what = "no files in this folder" if is_folder else "no such object"
        raise FileNotFoundError(f"{uri}: {what}")
    return sorted(files, key=str)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a key, or a folder of it, has the form of a pattern, as `glob` reads patterns."""
    if not pattern:
        return not parts or not _is_mark(PurePosixPath(*parts))
    hidden = bool(parts) and parts[0].startswith(".") and not pattern[0].startswith(".")
    if pattern[0] == "**":
        deeper = bool(parts) and not hidden and _matches(parts[1:], pattern)
        return deeper or _matches(parts, pattern[1:])
    fits = bool(parts) and not hidden and fnmatchcase(parts[0], pattern[0])
    return fits and _matches(parts[1:], pattern[1:])


def kind_of(path: str) -> str | None:
    """The kind of source, by the suffixes of the files; None if they have no known suffix.

    Args:
        path: of a file, a folder or a pattern.

    Raises:
        FileNotFoundError: a store has no such files.
        DataError: the files of a folder or pattern are of several kinds.
    """
    kind = _kind_of_name(path)
    if kind is not None:
        return kind
    try:
        files = files_of(path)
    except FileNotFoundError:
        if remote.is_remote(path):  # what is wrong is known: there is no such bucket, say
            raise
        return None
    kinds = {_kind_of_name(file.path): file.path for file in files}
    if len(kinds) > 1:
        examples = ", ".join(kinds.values())
        known = next(file for kind, file in kinds.items() if kind is not None)
        folder, _, name = known.rpartition("/")
        raise DataError(
            f"{path}: files of one kind are expected, got {examples}; a pattern selects "
            f"one kind: `{folder or '.'}/*{PurePath(name).suffix}`"
        )
    return next(iter(kinds))


def _kind_of_name(path: str) -> str | None:
    name = path.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def _is_mark(path: PurePath) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in path.parts)


def binary_labels(raw: Array, where: Callable[[int], str], name: str = "label") -> Array:
    """float32 [R]: 1 where the label is 1, 0 where it is 0 or -1.

    Args:
        raw: numbers [R].
        where: gives file and line of a row, for the message.
        name: the name of the column.

    Raises:
        DataError: a label is something else.
    """
    bad = ~np.isin(raw, (-1, 0, 1))
    if bad.any():
        row = int(bad.argmax())
        if np.isnan(raw[row]):
            raise missing_label(where(row), name)
        raise DataError(
            f"{where(row)}: {name} must be 0 or 1 (-1 counts as 0), got {raw[row]:g}{OF_LABELS}"
        )
    return (raw > 0).astype(np.float32)


def missing_label(where: str, name: str) -> DataError:
    """The error of a row without a label."""
    return DataError(f"{where}: {name} has no value: leave out rows without a label")


def finite_numbers(table: Array, names: Sequence[str], where: Callable[[int], str]) -> Numbers:
    """The cells of `table` (float64 [R, C], NaN = missing) as float32.

    Raises:
        DataError: a number is infinite, or is so in float32; names its row and column.
    """
    with np.errstate(over="ignore"):
        numbers = table.astype(np.float32)
    infinite = np.isinf(numbers)
    if infinite.any():
        row, column = divmod(int(infinite.argmax()), len(names))
        got = table[row, column]
        raise DataError(f"{where(row)}: {names[column]} must be finite in float32, got {got}")
    return Numbers(numbers)


def check_sparse(rows: Rows, dim: int | None, where: Callable[[int], str]) -> None:
    """Checks that ids are in [0, dim) and that values are finite.

    Raises:
        DataError: one is not; names its row.
    """
    limit = np.iinfo(np.int64).max if dim is None else dim
    bad = (rows.ids < 0) | (rows.ids >= limit)
    values = np.zeros(0, np.float32) if rows.values is None else rows.values
    for wrong, message in (
        (bad, f"ids must be in [0, {limit}), the id space of the training data"),
        (~np.isfinite(values), "values must be finite"),
    ):
        if wrong.any():
            k = int(wrong.argmax())
            row = int(np.searchsorted(rows.row_splits, k, side="right")) - 1
            got = rows.ids[k] if wrong is bad else values[k]
            raise DataError(f"{where(row)}: {message}, got {got}")


def with_sparse_dim(schema: Schema, blocks: Callable[[], Iterable[Block]]) -> Schema:
    """The schema with the size of the id space, for which `blocks` is read if it is unknown."""
    if schema.sparse_dim >= 0:
        return schema
    return dataclasses.replace(schema, sparse_dim=sparse_dim_of(blocks()))


def sparse_dim_of(blocks: Iterable[Block]) -> int:
    """The size of the id space: the largest sparse id + 1, at least 1."""
    return 1 + max((int(b.groups["sparse"].ids.max(initial=0)) for b in blocks), default=0)
