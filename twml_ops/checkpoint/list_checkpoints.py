"""Which checkpoints a folder has: valid, damaged, incomplete; what is based on what."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from twml_ops.checkpoint.errors import CheckpointDamaged, CheckpointError
from twml_ops.checkpoint.locations import Location, read_bytes, size_of
from twml_ops.checkpoint.manifest import MANIFEST, Manifest
from twml_ops.checkpoint.reader import CheckpointReader

# The second form, a step and a time, names the first checkpoints of clusters.
_FOLDER = re.compile(r"ckpt-(\d{8,})-step-\d+|ckpt-\d{12}-\d+")


class FoundCheckpoints(NamedTuple):
    """The complete checkpoints of a folder at one moment.

    Attributes:
        valid: the ones whose manifest is valid, from the oldest to the newest.
        problems: what is wrong with the manifest of each other one, by name of its folder. It is a
            `CheckpointDamaged`, or the manifest cannot be read now.
    """

    valid: list[CheckpointReader]
    problems: dict[str, CheckpointError]

    @property
    def manifests(self) -> dict[str, Manifest]:
        """The valid manifests by name of the folder."""
        return {c.folder.name: c.manifest for c in self.valid}

    @property
    def unread(self) -> list[str]:
        """The names of the checkpoints whose manifest cannot be read now."""
        return [n for n, e in self.problems.items() if not isinstance(e, CheckpointDamaged)]

    def raise_unread(self) -> None:
        """Raises the error of a manifest that cannot be read now.

        Raises:
            CheckpointError: there is one.
        """
        for name in self.unread:
            raise self.problems[name]

    def usable(self, damaged: Collection[str]) -> list[CheckpointReader]:
        """The valid checkpoints whose bases are there as well.

        Args:
            damaged: names of checkpoints whose data are damaged.

        Returns:
            From the oldest to the newest.
        """
        manifests, unread = self.manifests, self.unread

        def is_usable(checkpoint: CheckpointReader) -> bool:
            chain = chain_of(checkpoint.folder.name, manifests)
            if not set(chain).isdisjoint(damaged):
                return False
            last = manifests.get(chain[-1])
            return chain[-1] in unread if last is None else last.base is None

        return [c for c in self.valid if is_usable(c)]


def find(folder: Location) -> FoundCheckpoints:
    """Reads all manifests of a folder.

    Args:
        folder: the folder of all checkpoints.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    found = FoundCheckpoints([], {})
    for path in folders_in(folder):
        try:
            found.valid.append(CheckpointReader(path))
        except CheckpointError as e:
            if isinstance(e, CheckpointDamaged) or not is_incomplete(path):
                found.problems[path.name] = e
    found.valid.sort(key=lambda c: c.manifest.sequence)
    return found


def folders_in(folder: Location) -> list[Location]:
    """The folders of all checkpoints, complete or not.

    Args:
        folder: the folder of all checkpoints, which may be missing.

    Returns:
        From the oldest to the newest.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    try:
        found = [p for p in folder.iterdir() if _FOLDER.fullmatch(p.name)]
    except (FileNotFoundError, NotADirectoryError):  # or another process has removed it
        return []
    except OSError as e:
        raise CheckpointError(f"{folder}: cannot be read: {e.strerror}") from e
    return sorted(found, key=lambda path: (number_of(path.name), path.name))


def number_of(name: str) -> int:
    """The number of a checkpoint.

    Args:
        name: the name of its folder.

    Returns:
        The number; -1 for the first checkpoints of clusters, which have none.
    """
    match = _FOLDER.fullmatch(name)
    return int(match.group(1)) if match and match.group(1) else -1


def chain_of(name: str, manifests: Mapping[str, Manifest]) -> list[str]:
    """The checkpoint and the ones that it is based on.

    Args:
        name: the name of its folder.
        manifests: the manifests by name.

    Returns:
        Names, from the newest to the complete one, or to one that has no manifest.
    """
    chain: list[str] = []
    current: str | None = name
    while current is not None and current not in chain:
        chain.append(current)
        manifest = manifests.get(current)
        current = manifest.base if manifest else None
    return chain


def names_in_chain(path: Location) -> list[str]:
    """The checkpoints that are needed to read one, if their manifests can be read.

    Args:
        path: the folder of the checkpoint.

    Returns:
        From the one that is complete in itself; empty if one is missing or damaged.
    """
    try:
        return [each.folder.name for each in CheckpointReader(path).chain()]
    except CheckpointError:
        return []


def has_manifest(path: Location) -> bool:
    """Whether a checkpoint has a manifest, or may have one: only its absence makes it incomplete.

    Args:
        path: the folder of the checkpoint.
    """
    try:
        size_of(path / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def is_incomplete(path: Location) -> bool:
    """Whether a checkpoint has no manifest, or a part of one, which is not JSON.

    Args:
        path: the folder of the checkpoint.
    """
    try:
        json.loads(read_bytes(path / MANIFEST))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except (OSError, RecursionError):  # it cannot be read now, or is nested too deeply
        return False
    return False
