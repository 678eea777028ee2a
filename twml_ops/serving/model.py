"""The versions of a served model: finds new ones, and replaces the one that is served."""

from __future__ import annotations

import logging
import os
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from twml_ops._scorer import PROGRAM_FILE
from twml_ops.serving.errors import NotFound
from twml_ops.serving.options import ServerOptions
from twml_ops.serving.version import Version

LOG = logging.getLogger(__name__)
OK, UNKNOWN = 0, 2  # of tensorflow.error.Code


class State(NamedTuple):
    """The state of a version, as the model status of TensorFlow Serving has it."""

    number: int
    name: str
    error_code: int = OK
    error_message: str = ""


class Model:
    """A model, of which the newest version that can be read is served.

    A request keeps the version that it began with, which exists as long as any request has it.

    Args:
        folder: the folder of the model, or of its numbered versions.
        options: the options of the server.
        on_load: called with True when a version has been loaded, with False when that failed.
    """

    def __init__(
        self,
        folder: Path,
        options: ServerOptions,
        on_load: Callable[[bool], object] = bool,
    ) -> None:
        self.name = options.name or Path(folder).resolve().name
        self._folder, self._options, self._on_load = folder, options, on_load
        self._lock = threading.Lock()  # of `refresh`
        self._current: Version | None = None
        self._identity: tuple[object, ...] = ()
        self._failed: dict[tuple[object, ...], State] = {}
        self._retired: weakref.WeakSet[Version] = weakref.WeakSet()

    @property
    def current(self) -> Version:
        """The version that is served.

        Raises:
            NotFound: no version has been loaded yet.
        """
        if self._current is None:
            raise NotFound(f"no version of the model {self.name!r} is loaded")
        return self._current

    def get(self, name: str, number: int | None = None) -> Version:
        """The version for a request.

        Args:
            name: the model of the request.
            number: its version; None is the one that is served.

        Raises:
            NotFound: the model has another name, or the version is not served.
        """
        if name != self.name:
            raise NotFound(f"there is no model {name!r}; this server has {self.name!r}")
        current = self.current
        if number is not None and number != current.number:
            raise NotFound(
                f"version {number} of the model {name!r} is not served; version {current.number} is"
            )
        return current

    def refresh(self, retry: bool = False) -> bool:
        """Looks for versions, and serves the newest that can be read.

        A folder that cannot be read is not tried again until its files change. The served version
        stays if no other can be read; an older one replaces it if its folder has been removed.

        Args:
            retry: whether to try again folders that could not be read.

        Returns:
            Whether another version is served now.
        """
        with self._lock:
            try:
                found = find_versions(self._folder)
            except OSError as e:
                LOG.warning("cannot look for versions: %s", e)
                return False
            there = {f.identity for f in found}
            self._failed = {k: s for k, s in self._failed.items() if k in there and not retry}
            for folder in found:
                if self._serves(folder):
                    return False
                if folder.identity not in self._failed and self._load(folder):
                    return True
            return False

    def load_first(self) -> None:
        """Loads the first version.

        Raises:
            FileNotFoundError: there is no such folder, or it has no complete version.
            ValueError: no version can be read.
        """
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} is no folder")
        if self.refresh():
            return
        if self._failed:
            newest = max(self._failed.values(), key=lambda s: s.number)
            raise ValueError(newest.error_message)
        raise FileNotFoundError(
            f"{self._folder} has no {PROGRAM_FILE}, and no subfolder that has one and a number as "
            "its name"
        )

    def states(self, number: int | None = None) -> list[State]:
        """The states of the versions, the newest first.

        Args:
            number: the version to tell the state of; None is all of them.

        Raises:
            NotFound: there is no such version.
        """
        states = list(self._failed.values())
        if self._current is not None:
            states.append(State(self._current.number, "AVAILABLE"))
        states += [State(v.number, "UNLOADING") for v in list(self._retired)]
        states = [s for s in states if number in (None, s.number)]
        if not states:
            raise NotFound(f"version {number} of the model {self.name!r} does not exist")
        return sorted(states, key=lambda s: s.number, reverse=True)

    def _serves(self, folder: VersionFolder) -> bool:
        if self._current is None:
            return False
        if folder.number is None:
            return folder.identity == self._identity
        return folder.number == self._current.number

    def _load(self, folder: VersionFolder) -> bool:
        number = folder.number
        if number is None:  # versions are counted
            number = 1 if self._current is None else self._current.number + 1
        try:
            version = Version.load(folder.path, number, self._options)
        except (OSError, ValueError, MemoryError) as e:
            LOG.error("version %d is refused: %s", number, e)
            self._failed[folder.identity] = State(number, "END", UNKNOWN, str(e))
            self._on_load(False)
            return False
        if self._current is not None:
            self._retired.add(self._current)
        self._current, self._identity = version, folder.identity
        LOG.info("version %d of %s is served (%s)", number, self.name, version.update)
        self._on_load(True)
        return True


class VersionFolder(NamedTuple):
    """A folder with a version.

    Attributes:
        number: its number; None for a folder without numbered versions.
        path: the folder, without symbolic links.
        identity: changes if the files are replaced.
    """

    number: int | None
    path: Path
    identity: tuple[object, ...]


def find_versions(folder: Path) -> list[VersionFolder]:
    """Returns the versions in a folder, the newest first.

    The folder is either one that `export.to_scorer` wrote, or has one for each version, with its
    number as the name. `to_scorer` writes the program last: a folder without it is not complete
    and is left out.

    Args:
        folder: the folder, or a symbolic link to it.

    Raises:
        OSError: the folder cannot be read.
    """
    own = _version(None, folder)
    if own is not None:
        return [own]
    found = []
    for entry in os.scandir(folder):
        if re.fullmatch(r"[0-9]{1,18}", entry.name):
            version = _version(int(entry.name), Path(entry.path))
            if version is not None:
                found.append(version)
    return sorted(found, key=lambda v: v.number or 0, reverse=True)


def _version(number: int | None, folder: Path) -> VersionFolder | None:
    try:
        path = Path(os.path.realpath(folder))
        if not (path / PROGRAM_FILE).is_file():
            return None
        files = sorted(map(_identity, os.scandir(path)))
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
        return None
    return VersionFolder(number, path, (path, *files))


def _identity(entry: os.DirEntry[str]) -> tuple[str, int, int, int]:
    stat = entry.stat()
    return entry.name, stat.st_ino, stat.st_size, stat.st_mtime_ns
