"""A disk whose calls are counted and fail one after the other.

It replaces the functions of `os` and `open` in this process, for the paths below one folder. It
also knows what a power cut would lose: bytes of files, and names in folders, that no fsync covers.
Its fsync is only recorded, which saves the time of the real one.
"""

import builtins
import errno
import io
import os
import shutil

ERRORS = (errno.EIO, errno.ENOSPC)
_READS = ("stat", "lstat", "listdir", "scandir", "read")
_OF_PATHS = "open mkdir rmdir unlink remove rename replace link chmod stat lstat listdir scandir"


class Disk:
    """Replaces the file functions while it is a context manager.

    Args:
        root: the folder whose calls count.
        fail: number of the call that fails; None: none does.
        error: what it fails with. ENOSPC makes calls fail that need space; 0 cuts a write short.

    Attributes:
        calls: the kinds and paths of the calls.
        failed: whether a call failed.
        what: the call that failed, for messages.
    """

    def __init__(self, root, fail=None, error=errno.EIO):
        self.root, self.fail, self.error = os.path.realpath(root), fail, error
        self.calls, self.failed = [], False
        self.what = None
        self._unsynced, self._new = set(), set()
        self._real = {name: getattr(os, name) for name in (*_OF_PATHS.split(), "fsync")}
        self._open = builtins.open

    def __enter__(self):
        for name in _OF_PATHS.split():
            setattr(os, name, self._of_path(name))
        os.fsync = self._fsync
        builtins.open = io.open = self._open_file
        return self

    def __exit__(self, *error):
        for name, function in self._real.items():
            setattr(os, name, function)
        builtins.open = io.open = self._open

    def lost(self):
        """The paths that a power cut would lose, or whose content it would lose."""
        return sorted(p for p in self._unsynced | self._new if os.path.lexists(p))

    def call(self, kind, path):
        """Counts a call; raises if it fails. Returns whether a write is cut short."""
        number = len(self.calls)
        self.calls.append((kind, path))
        if number != self.fail:
            return False
        if not self.error:
            self.failed |= kind == "write"
            return kind == "write"
        if self.error == errno.ENOSPC and kind in (*_READS, "unlink", "rmdir", "remove"):
            return False
        self.failed = True
        raise OSError(self.error, os.strerror(self.error), path)

    def _path(self, path, folder=None):
        """The absolute path, if it is below the root."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = os.fspath(path)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if folder is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        path = os.path.abspath(path)
        return path if path.startswith(self.root) else None

    def _of_path(self, name):
        real = self._real[name]

        def function(path=".", *args, **options):
            folder = options.get("dir_fd", options.get("src_dir_fd"))
            here = self._path(path, folder)
            if here is None:
                return real(path, *args, **options)
            self.call(name, here)
            is_new = name == "mkdir" or (
                name == "open" and args[0] & os.O_CREAT and not os.path.lexists(here)
            )
            result = real(path, *args, **options)
            if is_new:
                self._new.add(here)
            elif name in ("unlink", "remove", "rmdir"):
                self._forget(here)
            elif name in ("rename", "replace", "link"):
                self._named(here, self._path(args[0]), keeps=name == "link")
            return result

        return function

    def _fsync(self, handle):
        here = self._path(handle)
        if here is not None:
            self.call("fsync", here)
        self._unsynced.discard(here)
        self._new = {path for path in self._new if os.path.dirname(path) != here}

    def _forget(self, path):
        for paths in (self._unsynced, self._new):
            paths.difference_update([p for p in paths if p == path or p.startswith(path + "/")])

    def _named(self, old, new, keeps):
        self._unsynced.discard(new)
        for paths in (self._unsynced, self._new):
            moved = [p for p in paths if p == old or p.startswith(old + "/")]
            if not keeps:
                paths.difference_update(moved)
            paths.update(new + p[len(old) :] for p in moved)
        self._new.add(new)

    def _open_file(self, path, mode="r", buffering=-1, encoding=None, *args, **options):
        here = None if isinstance(path, int) or options.get("opener") else self._path(path)
        if here is None:
            return self._open(path, mode, buffering, encoding, *args, **options)
        self.call("open", here)
        if "r" not in mode:
            if not os.path.lexists(here):
                self._new.add(here)
            self._unsynced.add(here)
        raw = _File(here, mode.replace("b", "").replace("t", ""), self)
        if buffering == 0:
            return raw
        buffer = (io.BufferedReader if "r" in mode else io.BufferedWriter)(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, *args, **options)


class _File(io.FileIO):
    """A file whose reads and writes count."""

    def __init__(self, path, mode, disk):
        super().__init__(path, mode)
        self._here, self._disk = path, disk

    def write(self, data):
        short = self._disk.call("write", self._here)
        self._disk._unsynced.add(self._here)
        data = memoryview(data).cast("B")
        return super().write(data[: max(1, len(data) // 2)] if short else data)

    def read(self, size=-1):
        self._disk.call("read", self._here)
        return super().read(size)

    def readall(self):
        self._disk.call("read", self._here)
        return super().readall()

    def readinto(self, buffer):
        self._disk.call("read", self._here)
        return super().readinto(buffer)


def each_fault(work, prepare, root):
    """Runs work once for each call that can fail, and each error.

    Args:
        work: called without arguments.
        prepare: called before each run with the folder, which is empty.
        root: the folder.

    Yields:
        The disk after the run, and what the work raised; None: nothing.
    """

    def run(**options):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        prepare(root)
        raised = None
        with Disk(root, **options) as disk:
            try:
                work()
            except Exception as e:
                raised = e
        return disk, raised

    disk, raised = run()
    assert raised is None, raised
    yield disk, None
    for number in range(len(disk.calls)):
        for error in (0, *ERRORS):
            each, raised = run(fail=number, error=error)
            if each.failed:
                each.what = *each.calls[number], error
                yield each, raised
