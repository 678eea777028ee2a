"""The versions of a model in a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from twml_ops._scorer import PROGRAM_FILE


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
    """The versions in a folder, the newest first.

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
