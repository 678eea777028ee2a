"""The checkpoints of one training, in one folder: saves them, and finds the newest intact one."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from twml_ops._publish import exclusive
from twml_ops.checkpoint.errors import CheckpointDamaged, CheckpointError
from twml_ops.checkpoint.incremental import TableFollower, TablePolicy, Taken
from twml_ops.checkpoint.list_checkpoints import (
    FoundCheckpoints,
    chain_of,
    find,
    folders_in,
    has_manifest,
    is_incomplete,
    names_in_chain,
    number_of,
)
from twml_ops.checkpoint.locations import (
    Location,
    identity,
    location,
    make_folders,
    remove_tree,
    sync,
)
from twml_ops.checkpoint.manifest import MANIFEST, Manifest
from twml_ops.checkpoint.reader import CheckpointReader
from twml_ops.checkpoint.rows import ROWS, encode_rows
from twml_ops.checkpoint.writer import CheckpointWriter

LOCK_FILE = ".lock"
_TRIES = 20  # to read a checkpoint before another process removes it


class _Removed(Exception):
    """Another process has removed a checkpoint that was being read."""


class Saved(Protocol):
    """What a manager saves: a named value, such as `NamedVariable`."""

    @property
    def name(self) -> str:
        """The same in every process that builds the same model."""

    @property
    def label(self) -> str:
        """Name for people."""

    def view(self) -> np.ndarray:
        """The current value, without a copy if possible."""


class CheckpointManager:
    """Writes checkpoints to a folder, keeps the last ones, and finds them again.

    Each checkpoint is a folder of its own, `ckpt-<number>-step-<step>`, which is valid once it has
    a manifest. The manifest is written last and appears with an atomic rename, so a process that
    is killed at any moment leaves the previous checkpoint valid. What it left of an incomplete one
    is removed when the next manager opens the folder for writing. Only one process at a time can
    write to a folder.

    With `background` the caller waits only until the values are copied, and a thread writes the
    copy. A manager copies one checkpoint at a time: `save` first waits for the one before. The
    memory of the copy, as large as the state, is kept for the next checkpoint.

    Args:
        folder: the folder of all checkpoints. It is created by the first `save`. An address with a
            scheme, such as gs://, is one of TensorFlow's file systems, which have no locks.
        keep: how many checkpoints to keep, the last ones, at least 1.
        background: whether a thread writes. Otherwise `save` returns when the checkpoint is on the
            disk, and copies nothing but changed rows.
        tables: what checkpoints have of the tables and their slots: all rows or those that changed,
            and how many bits of a weight. Default: all, as they are.
        on_written: called with each checkpoint when it is on the disk, by the thread that writes,
            before the next one is begun. What it raises is raised as an error of the checkpoint.

    Raises:
        ValueError: `keep` is less than 1.
    """

    def __init__(
        self,
        folder: str | Location,
        *,
        keep: int = 3,
        background: bool = True,
        tables: TablePolicy | None = None,
        on_written: Callable[[CheckpointReader], object] | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder = location(folder)
        self.keep, self.background, self.on_written = keep, background, on_written
        self._lock = contextlib.ExitStack()
        self._next: int | None = None
        self._lock_file: tuple[int, int] | None = None
        self._intact: tuple[list[str], CheckpointReader] | None = None
        self._damaged: set[str] = set()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._buffers: dict[str, np.ndarray] = {}
        self._follower = TableFollower(tables) if tables and tables.policy != "full" else None
        self._tables = tables or TablePolicy()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.wait()
            else:
                self._join()
        finally:
            if self._follower is not None:
                self._follower.close()
            self._lock.close()
            self._next = None

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and lets other processes write.

        Raises:
            CheckpointError: it could not be written.
        """
        self.__exit__(None, None, None)

    def all(self) -> list[CheckpointReader]:
        """The valid checkpoints, from the oldest to the newest.

        Returns:
            Those whose manifest is valid; `CheckpointReader.verify` checks the data as well.

        Raises:
            CheckpointError: the folder, or the manifest of a checkpoint, cannot be read now.
        """
        found = find(self.folder)
        found.raise_unread()
        return found.valid

    def latest(self) -> CheckpointReader | None:
        """The newest valid checkpoint.

        Returns:
            The checkpoint; None if there is none.

        Raises:
            CheckpointError: the folder, or the manifest of a checkpoint, cannot be read now.
        """
        found = self.all()
        return found[-1] if found else None

    @property
    def is_empty(self) -> bool:
        """Whether no checkpoint was completed here, be it valid or damaged now."""
        return not any(map(has_manifest, folders_in(self.folder)))

    def newest_intact(
        self,
        read: Callable[[CheckpointReader], object] = CheckpointReader.verify,
        warn: Callable[[str], object] | None = None,
    ) -> CheckpointReader | None:
        """The newest checkpoint that is what was written; an older one if newer ones are damaged.

        Those that are damaged stay until another checkpoint is complete. The folder is read again
        if another process has removed a checkpoint before it was read.

        Args:
            read: called with a checkpoint, the newest first. It raises `CheckpointDamaged` if the
                checkpoint cannot be used. Default: all of it is compared with its checksums, once.
            warn: called with a message if newer checkpoints are damaged. Default: a
                `RuntimeWarning`.

        Returns:
            The checkpoint; None if there is none. One that is incomplete is none.

        Raises:
            CheckpointDamaged: there are checkpoints, and all are damaged.
            CheckpointError: one cannot be read now, or all are removed before they are read.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(_Removed):
                return self._newest_intact(read, warn)
        raise CheckpointError(
            f"{self.folder}: another process removes the checkpoints before they are read"
        )

    def _newest_intact(
        self,
        read: Callable[[CheckpointReader], object],
        warn: Callable[[str], object] | None,
    ) -> CheckpointReader | None:
        folders = folders_in(self.folder)
        names, problems, damaged = [path.name for path in folders], list[str](), False
        if read is CheckpointReader.verify and self._intact and self._intact[0] == names:
            return self._intact[1]
        for path in reversed(folders):
            try:
                found = CheckpointReader(path)
                read(found)
            except CheckpointDamaged as e:
                if not has_manifest(path):
                    raise _Removed from e
                problems.append(str(e))
                self._damaged.add(path.name)
                damaged = True
                continue
            except CheckpointError as e:
                if not is_incomplete(path):
                    raise
                if isinstance(e.__cause__, ValueError):  # a part of a manifest, or a damaged one
                    problems.append(str(e))
                continue
            if problems:
                (warn or _warn)(f"{'; '.join(problems)}; the older {path.name} is used instead")
            if read is CheckpointReader.verify:
                self._intact = names, found
            return found
        if damaged:
            raise CheckpointDamaged(
                f"{self.folder}: none of its checkpoints can be used: {'; '.join(problems)} "
                "(a training notices damage when it starts, `twml-ops checkpoints verify` always)"
            )
        return None

    def save(self, step: int, variables: Sequence[Saved], values: Mapping[str, Any]) -> None:
        """Writes a checkpoint, and removes older ones that are no longer to be kept.

        Args:
            step: the step of the optimizer.
            variables: their current values are saved.
            values: everything that is no array; JSON must have them.

        Raises:
            CheckpointError: this checkpoint cannot be written or, with `background`, the one before
                could not be written; then this one has not been started. The checkpoints before
                are unchanged in any case.
        """
        self.wait()
        sequence = self._open()
        self._next = sequence + 1
        path = self._path(sequence, step)
        taken = None
        if self._follower is not None:
            taken = self._follower.take(variables, self._can_be_read)
        rows = taken.rows if taken else {}
        left = [v for v in variables if v.name not in rows]
        # A value that may be larger than memory is not copied, so it is written before the
        # training goes on.
        background = self.background and not any(map(self._in_pieces, left))
        whole = [
            (v, None if self._in_pieces(v) else self._copy(v) if background else v.view())
            for v in left
        ]
        changed = [(v, *rows[v.name]) for v in variables if v.name in rows]
        arguments = path, sequence, step, whole, changed, values, taken
        if not background:
            self._write(*arguments)
            return
        self._thread = threading.Thread(
            target=self._write_in_background, args=arguments, name="twml_ops-checkpoint"
        )
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Waits for the checkpoint that is being written.

        Raises:
            CheckpointError: it could not be written.
        """
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the lock of the folder in a block, if the folder exists.

        Yields:
            Nothing.

        Raises:
            CheckpointError: another process writes to the folder.
        """
        if not self._has_folder():
            yield
            return
        had_lock = self._next is not None
        self._open()
        try:
            yield
        finally:
            if not had_lock:
                self._lock.close()
                self._next = None

    def remove_all(self) -> None:
        """Removes all checkpoints and the folder, if it has nothing else.

        Raises:
            CheckpointError: another process writes to the folder, or a checkpoint cannot be
                removed; then it and those that it is based on are as they were.
        """
        if not self._has_folder():
            return
        self._join()
        self._open()
        for path in reversed(folders_in(self.folder)):  # none is ever without its base
            if not self._remove(path):
                raise CheckpointError(f"{path}: the checkpoint cannot be removed")
        with contextlib.suppress(OSError):  # while it is locked: the next process makes another one
            (self.folder / LOCK_FILE).unlink()
        self._lock.close()
        self._next = None
        with contextlib.suppress(OSError):
            if isinstance(self.folder, Path):
                self.folder.rmdir()
            elif not any(self.folder.iterdir()):
                remove_tree(self.folder)

    def _open(self) -> int:
        """Takes the lock of the folder and removes incomplete checkpoints; the next number."""
        if self._next is not None and self._has_lock():
            return self._next
        self._lock.close()
        try:
            make_folders(self.folder)
            alone = True
            if isinstance(self.folder, Path):
                alone = self._lock.enter_context(exclusive(self.folder / LOCK_FILE))
        except OSError as e:
            raise CheckpointError(
                f"{self.folder}: no checkpoints can be written here: {e.strerror}"
            ) from e
        if not alone:
            self._lock.close()
            raise CheckpointError(f"{self.folder}: another process writes checkpoints here")
        self._lock_file = identity(self.folder / LOCK_FILE)
        folders = folders_in(self.folder)
        for path in folders:
            if not has_manifest(path):
                self._remove(path)
        self._next = max((number_of(path.name) for path in folders), default=-1) + 1
        return self._next

    def _has_folder(self) -> bool:
        try:
            return self.folder.is_dir()
        except OSError as e:
            raise CheckpointError(f"{self.folder}: cannot be read: {e.strerror}") from e

    def _has_lock(self) -> bool:
        """Whether the file that this manager has locked is still the one of the folder."""
        if not isinstance(self.folder, Path):
            return self.folder.is_dir()
        found = identity(self.folder / LOCK_FILE)
        return found is not None and found == self._lock_file

    def _in_pieces(self, variable: Saved) -> bool:
        """Whether a variable is written some rows at a time, which quantized ones are not."""
        in_pieces = getattr(variable, "pieces", None) is not None
        return in_pieces and self._bits_of(variable) is None

    def _bits_of(self, variable: Saved) -> int | None:
        return self._tables.bits_of(variable.label) if getattr(variable, "table", "") else None

    def _copy(self, variable: Saved) -> np.ndarray:
        view = variable.view()
        buffer = self._buffers.get(variable.name)
        if buffer is None or buffer.shape != view.shape or buffer.dtype != view.dtype:
            buffer = self._buffers[variable.name] = np.empty_like(view, order="C")
        np.copyto(buffer, view)
        return buffer

    def _write_in_background(self, *args: Any) -> None:
        try:
            self._write(*args)
        except BaseException as e:  # it reaches the thread that trains by `wait`
            self._error = e

    def _write(
        self,
        path: Location,
        sequence: int,
        step: int,
        whole: Sequence[tuple[Saved, np.ndarray | None]],
        changed: Sequence[tuple[Saved, np.ndarray | None, np.ndarray]],
        values: Mapping[str, Any],
        taken: Taken | None,
    ) -> None:
        try:
            with CheckpointWriter(path) as writer:
                for variable, array in whole:
                    self._add(writer, variable, array)
                size = sum(self._add_rows(writer, *each) for each in changed)
                writer.commit(sequence, step, values, taken.base if taken else None)
        except BaseException:
            if taken is not None:
                taken.failed()
            raise
        if taken is not None:
            taken.written(path.name, size)
        self._keep_last()
        if self.on_written is not None:
            self.on_written(CheckpointReader(path))

    def _add(self, writer: CheckpointWriter, variable: Any, array: np.ndarray | None) -> None:
        if array is None:
            dtype, shape = variable.variable.dtype.name, variable.shape
            writer.add(variable.name, variable.label, variable.pieces, dtype=dtype, shape=shape)
        elif self._bits_of(variable) is None:
            writer.add(variable.name, variable.label, [array])
        else:
            self._add_rows(writer, variable, None, array)

    def _add_rows(
        self, writer: CheckpointWriter, variable: Any, ids: np.ndarray | None, rows: np.ndarray
    ) -> int:
        """Writes rows of a table; returns the number of bytes."""
        shape = [int(n) for n in variable.shape]
        bits = self._tables.bits_of(variable.label)
        encoded = encode_rows(rows, ids, shape[0], bits)
        writer.add(
            variable.name,
            variable.label,
            encoded.pieces,
            dtype=rows.dtype.name,
            shape=shape,
            encoding=ROWS,
            details=encoded.details,
        )
        return encoded.bytes

    def prune(self, kept: Collection[str]) -> list[str]:
        """Removes all valid checkpoints except some and the checkpoints that these are based on.

        Args:
            kept: names of their folders.

        Returns:
            The names of the checkpoints that were removed. One that cannot be removed stays, with
            those that it is based on; one that cannot be read now keeps all older ones.

        Raises:
            CheckpointError: another process writes to the folder, or it cannot be read.
        """
        self._join()
        self._open()
        return self._remove_except(kept, find(self.folder))

    def usable(self) -> list[CheckpointReader]:
        """The valid checkpoints, without any that is known to be damaged or that lacks a base.

        Returns:
            From the oldest to the newest. `newest_intact` finds out which ones have damaged data.

        Raises:
            CheckpointError: the folder, or the manifest of a checkpoint, cannot be read now.
        """
        found = find(self.folder)
        found.raise_unread()
        return found.usable(self._damaged)

    def keep_last(self) -> None:
        """Removes all but the last `keep` checkpoints and the checkpoints that these are based on.

        One that is damaged or lacks a base does not count. If all are, all stay.

        Raises:
            CheckpointError: another process writes to the folder, or it cannot be read.
        """
        self._join()
        self._keep_last()

    def _keep_last(self) -> None:
        self._open()
        found = find(self.folder)
        kept = [c.folder.name for c in found.usable(self._damaged)[-self.keep :]]
        if kept:
            self._remove_except(kept, found)

    def lock(self) -> None:
        """Keeps other processes from writing to the folder, as `save` does.

        Raises:
            CheckpointError: another process writes to the folder, or it cannot be created.
        """
        self._open()

    def add(self, write: Callable[[CheckpointWriter, int], Manifest], step: int) -> Location:
        """Writes a checkpoint whose content does not come from variables.

        Args:
            write: gets a writer and the number of the checkpoint, and commits it.
            step: the step of the optimizer.

        Returns:
            The folder of the checkpoint.

        Raises:
            CheckpointError: it cannot be written; the others are unchanged.
        """
        self.wait()
        sequence = self._open()
        self._next = sequence + 1
        path = self._path(sequence, step)
        with CheckpointWriter(path) as writer:
            write(writer, sequence)
        return path

    def _path(self, sequence: int, step: int) -> Location:
        return self.folder / f"ckpt-{sequence:08d}-step-{step}"

    def _can_be_read(self, name: str) -> bool:
        """Whether a checkpoint and its bases are there and not known to be damaged."""
        chain = names_in_chain(self.folder / name)
        return bool(chain) and self._damaged.isdisjoint(chain)

    def _remove_except(self, kept: Collection[str], found: FoundCheckpoints) -> list[str]:
        manifests = found.manifests
        needed: set[str] = set()
        for name in kept:
            needed.update(chain_of(name, manifests))
        # One that cannot be read now may be based on any that is older.
        oldest = max(map(number_of, found.unread), default=-2)
        removed = []
        for path in (c.folder for c in reversed(found.valid)):  # newest first: none lacks its base
            if path.name in needed or number_of(path.name) <= oldest:
                continue
            if self._remove(path):
                removed.append(path.name)
            else:
                needed.update(chain_of(path.name, manifests))
        return removed

    def _remove(self, path: Location) -> bool:
        """Removes a checkpoint, its manifest first, so that it is never valid without its data.

        Returns whether it is no checkpoint any more; otherwise nothing of it was removed.
        """
        try:
            (path / MANIFEST).unlink(missing_ok=True)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            sync(path)
            remove_tree(path)  # or its data stay, until they are removed as incomplete
        return True

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
