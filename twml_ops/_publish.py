"""The one way to publish files and folders: they appear whole, and data of other programs are not
replaced.

What is written goes to a temporary name beside its target, is brought to the disk, and is renamed.
A target is replaced only on request, and only if it is a regular file, or a folder that has nothing
but files that this program wrote. Links are followed and stay. What was made but cannot be
published is kept, and the error names its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

_NO_ATOMIC_RENAME = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EINVAL)
_NO_LINK = (*_NO_ATOMIC_RENAME, errno.EMLINK, errno.EACCES)
_NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EROFS, errno.EBADF)
# A folder that cannot be replaced itself, as a mount cannot, may still be filled.
_FOLDER_STAYS = (errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES, errno.EROFS)
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
# renameat2 of Linux and its arguments: paths are relative to the current folder; exchange them.
_RENAMEAT2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if fcntl else None
_HERE, _EXCHANGE = -100, 2
_OPEN_FILE = re.compile(r"/dev/std(in|out|err)|(?:/dev/fd|/proc/(?:self|thread-self)/fd)/(\d+)")
_URI = re.compile(r"(?P<scheme>s3|gs|hdfs|https?|abfss?):/+")
_STANDARD = {"in": 0, "out": 1, "err": 2}
_LISTED = 3  # names in a message

Written = Callable[[Path], Collection[str] | None]
"""The relative paths of the files that this program wrote in a folder; None: not its folder."""


class TargetError(OSError):
    """A target that cannot be written or must not be replaced. The message names it.

    Attributes:
        replaceable: whether the call would replace it with `overwrite`.
        kept: where the result is that could not be published; None: there is none.
    """

    def __init__(
        self, message: str, *, replaceable: bool = False, kept: Path | None = None
    ) -> None:
        super().__init__(message)
        self.replaceable, self.kept = replaceable, kept


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


def make_folders(path: Path) -> None:
    """Creates a folder, and those above it, which are on the disk then.

    Args:
        path: the folder, which may be there.

    Raises:
        OSError: it cannot be created, or the disk fails.
    """
    missing = [p for p in (path, *path.parents) if not os.path.lexists(p)]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


def write_file(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Replaces a file of this program, such as a manifest, in a folder of this program.

    A file system that does not rename gets the file under its final name directly. A reader can
    then see a part of it, so the content needs a checksum.

    Args:
        path: the file, which appears with all of its content.
        content: all bytes, or a function that writes them to the file that it gets.

    Raises:
        OSError: the file cannot be written; the one before is unchanged. Or the new one has
            replaced it and may not be on the disk yet.
    """
    part = part_of(path)
    try:
        _write(part, content)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    try:
        os.replace(part, path)
    except OSError as e:
        if e.errno not in _NO_ATOMIC_RENAME:
            part.unlink(missing_ok=True)
            raise
        _write(path, content)
        part.unlink(missing_ok=True)
    sync(path.parent)


def part_of(path: Path) -> Path:
    """The temporary name of `write_file`, which a process that is killed leaves."""
    return path.with_name(path.name + ".part")


@contextlib.contextmanager
def exclusive(path: Path, *, remove: bool = False) -> Iterator[bool]:
    """Holds the lock of a file, which ends with the process.

    Args:
        path: the file, which is created.
        remove: whether the file is removed in the end.

    Yields:
        Whether this process has the lock. True as well where the file system has no locks.

    Raises:
        OSError: the file cannot be created.
    """
    handle, has_lock = _locked(path)
    try:
        yield has_lock
    finally:
        if remove and has_lock:  # before the lock ends: the next process creates another file
            with contextlib.suppress(OSError):
                os.unlink(path)
        os.close(handle)


@contextlib.contextmanager
def new_file(out: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """A temporary file, which becomes `out` when the block succeeds.

    A symbolic link is followed: the file that it names is created or replaced. A FIFO that has a
    reader, or a character device, /dev/stdout for example, gets the content and is not replaced. A
    file that is replaced keeps its permissions.

    Args:
        out: a path that does not exist, a FIFO, a character device, or with `overwrite` a regular
            file.
        overwrite: replace a regular file.

    Yields:
        The path of the temporary file, which exists and has the suffix of `out`.

    Raises:
        TargetError: `out` is anything else, is being written by another process, or its folder
            cannot be written; or the file cannot be published, and its content is kept.
        OSError: the disk is full.
    """
    stream = _stream(out)
    if stream is not None:
        with open(stream, "wb") as file, tempfile.TemporaryDirectory() as folder:
            part = Path(folder, "content" + Path(out).suffix)
            part.touch()
            yield part
            sys.stdout.flush()  # it may be the stream
            with part.open("rb") as content:
                shutil.copyfileobj(content, file)
        return
    target = _real(out)
    _check_file(out, target, overwrite)
    with _place(out, target.parent) as place, _alone(out, target, place):
        part = _temporary(place, target.name, "partial", target.suffix)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        private = 0o666 if mode is None else 0o600
        with _writing(out):
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, private))
        try:
            yield part
            if mode is not None:
                os.chmod(part, mode)
            sync(part)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        try:
            _check_file(out, target, overwrite)
            _rename_file(part, target, overwrite)
            sync(place)
        except OSError as e:
            raise _kept_error(out, e, _keep(part, target)) from e


@contextlib.contextmanager
def new_folder(
    out: str | os.PathLike[str],
    overwrite: bool = False,
    *,
    written: Written = lambda folder: None,
    kind: str = "an empty folder",
    last: str = "",
    is_kept: Callable[[Path], bool] = lambda folder: False,
    on_kept: Callable[[Path], object] = lambda folder: None,
    lock: bool = True,
) -> Iterator[Path]:
    """A temporary folder, which becomes `out` when the block succeeds.

    A symbolic link is followed. A mount, or an empty folder in a folder that cannot be written, is
    filled. A process that is killed may leave a hidden folder `.NAME.partial-…`.

    Args:
        out: a path that does not exist, an empty folder, or with `overwrite` a folder that has no
            files but the ones that `written` lists.
        overwrite: replace such a folder.
        written: tells what this program wrote. Default: no folder is replaced.
        kind: what such a folder is, for messages.
        last: name of the file that makes the folder valid; where it must be filled file by file,
            this one comes last.
        is_kept: whether a temporary folder is worth keeping when the block fails. Otherwise it is
            removed.
        on_kept: called with the path of a folder that was kept because the block failed.
        lock: whether another call with `out` is refused meanwhile. Processes that share one `out`,
            of which one publishes, do without.

    Yields:
        The temporary folder, on the file system of `out`.

    Raises:
        TargetError: `out` is anything else, is being written by another process, or its folder
            cannot be written; or the folder cannot be published, and is kept.
        OSError: the disk is full.
    """
    target = _real(out)
    _check_folder(out, target, overwrite, written, kind)
    mode = stat.S_IMODE(target.stat().st_mode) if target.is_dir() else None
    fill = mode is not None and (
        os.path.ismount(target)
        or not os.access(target.parent, os.W_OK)
        or target == _real(os.curdir)  # the shell of the user stays in it
    )
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_place(out, target if fill else target.parent))
        if lock:
            stack.enter_context(_alone(out, target, place))
        partial = _temporary(place, target.name, "partial")
        with _writing(out):
            partial.mkdir()
        try:
            yield partial
            if mode is not None:
                os.chmod(partial, mode)
            _sync_tree(partial)
        except BaseException:
            if is_kept(partial):
                on_kept(_keep(partial, target))
            else:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        is_published = False
        try:
            _check_folder(out, target, overwrite, written, kind)
            old, listed = _publish_folder(partial, target, written, last, fill)
            is_published = True
            sync(place)  # before anything of the old folder is removed
            _remove_old(old, listed, target)
        except OSError as e:
            kept = target if is_published else _keep(partial, target)
            raise _kept_error(out, e, kept) from e


def files_in(folder: Path) -> list[str]:
    """The relative paths of all that is no folder in a folder, sorted; links are not followed.

    Raises:
        OSError: a folder cannot be listed.
    """
    found = []
    for parent, folders, files in os.walk(folder, onerror=_raise):
        names = [*files, *(d for d in folders if os.path.islink(os.path.join(parent, d)))]
        found += [Path(parent, name).relative_to(folder).as_posix() for name in names]
    return sorted(found)


def _write(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    with open(path, "wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content)
        file.flush()
        os.fsync(file.fileno())


def check_is_here(out: str | os.PathLike[str]) -> None:
    """Raises an error if a target is a URI: a `Path` would make folders of it.

    Raises:
        TargetError: it is one.
    """
    uri = _URI.match(os.fspath(out))
    if uri and not os.path.isdir(uri["scheme"] + ":"):
        raise TargetError(
            f"{uri['scheme']}://{os.fspath(out)[uri.end() :]}: outputs are written on this machine "
            "only; name a folder here and copy it there"
        )


def _real(out: str | os.PathLike[str]) -> Path:
    """The path that a target has without links."""
    check_is_here(out)
    try:
        return Path(os.path.realpath(out, strict=False))
    except (OSError, ValueError) as e:
        raise TargetError(f"{out}: cannot be written: {getattr(e, 'strerror', e)}") from e


def _stream(out: str | os.PathLike[str]) -> int | None:
    """Opens what takes bytes and keeps none: an open file, a FIFO or a character device."""
    with _writing(out):
        match = _OPEN_FILE.fullmatch(os.path.abspath(out))
        if match is not None:
            return os.dup(int(match[2] or _STANDARD[match[1]]))
        try:
            mode = os.stat(out).st_mode
        except (OSError, ValueError):
            return None
        if not stat.S_ISFIFO(mode) and not stat.S_ISCHR(mode):
            return None
        try:  # without a reader it would wait, for ever perhaps
            handle = os.open(out, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            raise TargetError(f"{out}: is a FIFO that no process reads") from e
        os.set_blocking(handle, True)
        return handle


def _check_file(out: str | os.PathLike[str], target: Path, overwrite: bool) -> None:
    try:
        mode = os.lstat(target).st_mode
    except OSError:  # it is not there, or the creation of the temporary file says why
        return
    if not stat.S_ISREG(mode):
        raise TargetError(f"{out}: is {_kind_of(mode)}, expected a path for a new file")
    if not overwrite:
        raise TargetError(f"{out}: exists", replaceable=True)
    if not os.access(target, os.W_OK):
        raise TargetError(f"{out}: exists and is read-only")


def _check_folder(
    out: str | os.PathLike[str], target: Path, overwrite: bool, written: Written, kind: str
) -> None:
    """Raises unless the target is not there, is empty, or may be replaced."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise TargetError(f"{out}: exists and is not {kind}")
    with _writing(out):
        if not _content(target):
            return
    listed = written(target)
    if listed is None:
        raise TargetError(f"{out}: exists and is not {kind}")
    if not overwrite:
        raise TargetError(f"{out}: holds {kind}", replaceable=True)
    others = _others(target, listed)
    if others:
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        raise TargetError(
            f"{out}: has files that this program did not write, which would be lost: "
            f"{', '.join(others[:_LISTED])}{more}"
        )


def _kind_of(mode: int) -> str:
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISBLK: "a block device", stat.S_ISSOCK: "a socket"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "no regular file")


def _content(folder: Path) -> list[str]:
    """The names in a folder, without what every new file system has and what this module makes."""
    own = re.compile(re.escape(_short(folder.name)) + r"\.(partial-|old-|lock)")
    mount = os.path.ismount(folder)
    return [
        name
        for name in os.listdir(folder)
        if not (name[:1] == "." and own.match(name, 1)) and not (mount and name == "lost+found")
    ]


def _others(folder: Path, listed: Collection[str]) -> list[str]:
    """The files in a folder that this program did not write."""
    known, top = set(listed), set(_content(folder))
    return [
        name
        for name in files_in(folder)
        if name.partition("/")[0] in top
        and not (name in known and stat.S_ISREG(os.lstat(folder / name).st_mode))
    ]


@contextlib.contextmanager
def _writing(out: str | os.PathLike[str]) -> Iterator[None]:
    """Names the target in the errors of a block."""
    try:
        yield
    except TargetError:
        raise
    except OSError as e:
        raise TargetError(f"{out}: cannot be written: {e.strerror}") from e


@contextlib.contextmanager
def _place(out: str | os.PathLike[str], folder: Path) -> Iterator[Path]:
    """The folder for temporary names. Those that had to be created are removed if nothing is in."""
    missing = [p for p in (folder, *folder.parents) if not os.path.lexists(p)]
    try:
        with _writing(out):
            make_folders(folder)
        yield folder
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()


@contextlib.contextmanager
def _alone(out: str | os.PathLike[str], target: Path, place: Path) -> Iterator[None]:
    """Holds the lock of a target."""
    with contextlib.ExitStack() as stack:
        with _writing(out):
            path = place / f".{_short(target.name)}.lock"
            has_lock = stack.enter_context(exclusive(path, remove=True))
        if not has_lock:
            raise TargetError(f"{out}: another process is writing it")
        yield


def _locked(path: Path) -> tuple[int, bool]:
    """Opens a file and tries to lock it; the descriptor, and whether this process has the lock."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(path, flags, 0o666)
        if not _lock(handle):
            return handle, False
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle, True
        os.close(handle)  # the process before has removed it


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


def _short(name: str) -> str:
    """A name to which the parts of a temporary one can be added."""
    return name.encode(errors="surrogateescape")[:180].decode(errors="ignore")


def _temporary(place: Path, name: str, word: str, suffix: str = "") -> Path:
    return place / f".{_short(name)}.{word}-{secrets.token_hex(4)}{suffix[:40]}"


def _rename_file(part: Path, target: Path, overwrite: bool) -> None:
    if overwrite:
        os.replace(part, target)
        return
    try:
        os.link(part, target)  # unlike a rename, it fails if there is a file by now
    except OSError as e:
        if e.errno not in _NO_LINK:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from e
        os.rename(part, target)
    else:
        part.unlink()


def _publish_folder(
    partial: Path, target: Path, written: Written, last: str, fill: bool
) -> tuple[Path, Collection[str]]:
    """Renames `partial` to `target`; returns the path of the old folder, and its files to remove.

    The target exists at any moment if the system can exchange two folders.
    """
    if not fill and not (target.is_dir() and _content(target)):
        try:
            os.rename(partial, target)  # fails if something is in the folder by now
            return partial, ()
        except OSError as e:
            if e.errno not in _FOLDER_STAYS or not target.is_dir():
                raise
            fill = True
    replaced = _content(target) if target.is_dir() else []
    listed = written(target) if replaced else None
    if replaced and listed is None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    old = _temporary(target if fill else target.parent, target.name, "old")
    if not fill:
        try:
            if exchange(partial, target):
                return partial, listed or ()
            os.rename(target, old)
        except OSError as e:
            if e.errno not in _FOLDER_STAYS:
                raise
            fill = True
            old = target / old.name
    if fill:
        _fill(partial, target, old, replaced, last)
    else:
        try:
            os.rename(partial, target)
        except OSError:
            os.rename(old, target)
            raise
    return old, listed or ()


def _remove_old(old: Path, listed: Collection[str], target: Path) -> None:
    """Removes what was replaced, file by file."""
    if listed:
        _remove_listed(old, listed)
    if os.path.lexists(old):  # somebody put files into it at the last moment
        os.rename(old, _free_name(old.parent, target.name, "old"))
        sync(old.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders, so that both exist at any moment; whether the system can do that.

    Raises:
        OSError: it cannot exchange these.
    """
    if _RENAMEAT2 is None:
        return False
    result = _RENAMEAT2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)
    error = ctypes.get_errno()
    if result == 0 or error in _NO_EXCHANGE:
        return result == 0
    raise OSError(error, os.strerror(error), str(other))


def _fill(partial: Path, target: Path, old: Path, replaced: Collection[str], last: str) -> None:
    """Moves the content of `partial` to a folder that must stay, and what was there to `old`."""
    done: list[tuple[Path, Path]] = []

    def move(source: Path, destination: Path) -> None:
        if os.path.lexists(destination):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(destination))
        shutil.move(source, destination)
        done.append((source, destination))

    try:
        if replaced:
            old.mkdir()
        for name in sorted(replaced, key=lambda n: n != last):  # it is no longer valid
            move(target / name, old / name)
        for name in sorted(os.listdir(partial), key=lambda n: n == last):
            move(partial / name, target / name)
        _sync_tree(target)
    except BaseException:
        for source, destination in reversed(done):
            with contextlib.suppress(OSError):
                shutil.move(destination, source)
        with contextlib.suppress(OSError):
            old.rmdir()
        raise
    with contextlib.suppress(OSError):  # it is empty
        partial.rmdir()


def _remove_listed(folder: Path, listed: Collection[str]) -> None:
    """Removes files, and the folders that are empty then."""
    with contextlib.suppress(OSError):
        for name in listed:
            (folder / name).unlink(missing_ok=True)
        for parent, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(parent)


def _raise(error: OSError) -> None:
    """For `os.walk`, which otherwise leaves out a folder that cannot be listed."""
    raise error


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, onerror=_raise):
        for name in files:
            path = Path(parent, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                sync(path)
        sync(Path(parent))


def _free_name(place: Path, name: str, word: str) -> Path:
    """A path in a folder that nothing has."""
    paths = (place / f"{_short(name)}.{word}-{number}" for number in itertools.count(1))
    return next(path for path in paths if not os.path.lexists(path))


def _keep(part: Path, target: Path) -> Path:
    """Gives what is not published a name that is seen; if even that fails, it stays.

    If it was published, and what came after that failed, it is in the target.
    """
    if not os.path.lexists(part):
        return target
    kept = _free_name(part.parent, target.name, "kept")
    try:
        os.rename(part, kept)
    except OSError:
        return part
    return kept


def _kept_error(out: str | os.PathLike[str], error: OSError, kept: Path) -> TargetError:
    reason = error.strerror or str(error).removeprefix(f"{out}: ")
    return TargetError(
        f"{out}: cannot be written: {reason}; the result is kept in {kept}", kept=kept
    )
