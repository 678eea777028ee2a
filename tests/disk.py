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

from twml_ops import _publish

ERRORS = (errno.EIO, errno.ENOSPC)
_READS = ("stat", "lstat", "listdir", "scandir", "read")
_OF_PATHS = "open mkdir rmdir unlink remove rename replace link chmod stat lstat listdir scandir"


class Disk:
    """Replaces the file functions while it is a context manager.

    Args:
        root: the folder whose calls count.
        fail: number of the call that fails; None: none does.
        error: what it fails with. ENOSPC makes calls fail that need space; 0 cuts a write short.
        killed: whether all calls after it fail as well, so that nothing of them reaches the disk.
        exchanges: whether the system can exchange two folders.
        log: gets what changes the disk, see `tests.power_cut.Log`.

    Attributes:
        calls: the kinds and paths of the calls.
        failed: whether a call failed.
        what: the call that failed, for messages.
    """

    def __init__(self, root, fail=None, error=errno.EIO, *, killed=False, exchanges=True, log=None):
        self.root, self.fail, self.error = os.path.realpath(root), fail, error
        self.killed, self.exchanges, self.log = killed, exchanges, log
        self.calls, self.failed = [], False
        self.what = None
        self._unsynced, self._new = set(), set()
        self._real = {name: getattr(os, name) for name in (*_OF_PATHS.split(), "fsync")}
        self._open, self._real_exchange = builtins.open, _publish.exchange

    def __enter__(self):
        for name in _OF_PATHS.split():
            setattr(os, name, self._of_path(name))
        os.fsync = self._fsync
        builtins.open = io.open = self._open_file
        _publish.exchange = self._exchange
        return self

    def __exit__(self, *error):
        for name, function in self._real.items():
            setattr(os, name, function)
        builtins.open = io.open = self._open
        _publish.exchange = self._real_exchange

    def lost(self):
        """The paths that a power cut would lose, or whose content it would lose."""
        return sorted(p for p in self._unsynced | self._new if os.path.lexists(p))

    def call(self, kind, path):
        """Counts a call; raises if it fails. Returns whether a write is cut short."""
        number = len(self.calls)
        self.calls.append((kind, path))
        if number != self.fail and not (self.killed and self.failed):
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
            if self.log is not None:
                self.log.call("create" if is_new and name == "open" else name, here, *args[:1])
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
            if self.log is not None:
                self.log.call("fsync", here)
        self._unsynced.discard(here)
        self._new = {path for path in self._new if os.path.dirname(path) != here}

    def _exchange(self, one, other):
        self.call("exchange", os.fspath(one))
        if not self.exchanges or not self._real_exchange(one, other):
            return False
        names = [self._path(path) for path in (one, other)]
        if self.log is not None:
            self.log.call("exchange", *names)
        for here, there in (names, names[::-1]):
            self._named(here, there, keeps=True)
        return True

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
            if self.log is not None:
                self.log.call("truncate", here)
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
        data = data[: max(1, len(data) // 2)] if short else data
        if self._disk.log is not None:
            self._disk.log.write(self._here, self.tell(), bytes(data))
        return super().write(data)

    def read(self, size=-1):
        self._disk.call("read", self._here)
        return super().read(size)

    def readall(self):
        self._disk.call("read", self._here)
        return super().readall()

    def readinto(self, buffer):
        self._disk.call("read", self._here)
        return super().readinto(buffer)


def each_fault(work, prepare, root, errors=(0, *ERRORS), **of_disk):
    """Runs work once for each call that can fail, and each error.

    Args:
        work: called without arguments.
        prepare: called before each run with the folder, which is empty.
        root: the folder.
        errors: what each call fails with, see `Disk`.
        of_disk: other arguments of `Disk`.

    Yields:
        The disk after the run, and what the work raised; None: nothing.
    """

    def run(**options):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        prepare(root)
        raised = None
        with Disk(root, **options, **of_disk) as disk:
            try:
                work()
            except Exception as e:
                raised = e
        return disk, raised

    disk, raised = run()
    assert raised is None, raised
    yield disk, None
    for number in range(len(disk.calls)):
        for error in errors:
            each, raised = run(fail=number, error=error)
            if each.failed:
                each.what = *each.calls[number], error
                yield each, raised
