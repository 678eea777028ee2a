"""The files of the checkpoints of a run on servers: which are complete, and what they hold.

A checkpoint is a folder `ckpt-<step>-<time>`, which is valid only once it has a manifest. One of
changed rows names the checkpoint that it has the changes to, its base. The files of the servers and
of the dense weights are bundles of TensorFlow, which have a checksum for each tensor.
"""

from __future__ import annotations

import datetime
import json
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

MANIFEST = "manifest.json"
IDS = "@ids"
_KEY = "twml_ops_checkpoint"


class ShardsCheckpoint:
    """A checkpoint of a run on servers that is complete.

    Args:
        path: its folder.

    Attributes:
        path: its folder.
        name: of its folder.
        step: of the run.
        base: name of the checkpoint that it has the changes to; None: it has all rows.
        written: when, in UTC, as ISO 8601.

    Raises:
        ValueError: the folder is no such checkpoint.
    """

    def __init__(self, path: str) -> None:
        self.path, self.name = path, posixpath.basename(path)
        try:
            manifest = read_manifest(path)
            self.step, self._servers = int(manifest["step"]), int(manifest["servers"])
            self._has_tables, self._has_dense = bool(manifest["tables"]), bool(manifest["dense"])
            self.base: str | None = manifest.get("base")
            seconds = int(self.name.split("-")[2]) // 10**9
            time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
        except (tf.errors.OpError, LookupError, TypeError, ValueError, OverflowError) as e:
            raise ValueError(f"{path}: is no checkpoint of servers") from e
        self.written = time.isoformat()

    @property
    def data_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        names = [n for n in tf.io.gfile.listdir(self.path) if n != MANIFEST]
        return sum(tf.io.gfile.stat(posixpath.join(self.path, n)).length for n in names)

    def verify(self) -> None:
        """Compares all tensors with their checksums, those of the bases as well.

        Raises:
            ValueError: a file is missing or damaged.
        """
        try:
            for path in chain_of(self.path):
                ShardsCheckpoint(path)._verify_own()
        except tf.errors.OpError as e:
            raise ValueError(f"{self.path}: is damaged: {e.message}") from e

    def _verify_own(self) -> None:
        files = [f"server-{i}-of-{self._servers}" for i in range(self._servers)]
        for file in files * self._has_tables + ["dense"] * self._has_dense:
            reader = tf.train.load_checkpoint(posixpath.join(self.path, file))
            for name in reader.get_variable_to_shape_map():
                try:
                    reader.get_tensor(name)
                except Exception as e:  # the reader raises the error as different types
                    raise ValueError(f"{self.path}: {file}: {name} is damaged: {e}") from e


def shards_checkpoints(folder: Path) -> list[ShardsCheckpoint]:
    """The complete checkpoints of a run on servers.

    Args:
        folder: of the checkpoints.

    Returns:
        From the oldest to the newest; none if the folder has none.
    """
    found = []
    for path in complete(list_all(str(folder))):
        try:
            found.append(ShardsCheckpoint(path))
        except ValueError:
            continue
    return found


def list_all(folder: str) -> list[str]:
    """The folders of all checkpoints, complete or not, from the oldest to the newest.

    Args:
        folder: of the checkpoints.
    """
    if not tf.io.gfile.exists(folder):
        return []
    names = (n.rstrip("/") for n in tf.io.gfile.listdir(folder))
    return [posixpath.join(folder, n) for n in sorted(names) if n.startswith("ckpt-")]


def complete(checkpoints: Sequence[str]) -> list[str]:
    """Those that have a manifest, all of it: renaming is not atomic on every file system.

    Args:
        checkpoints: folders of checkpoints.
    """
    return [c for c in checkpoints if _has_manifest(c)]


def _has_manifest(path: str) -> bool:
    if not tf.io.gfile.exists(posixpath.join(path, MANIFEST)):
        return False
    try:
        with tf.io.gfile.GFile(posixpath.join(path, MANIFEST)) as f:
            return isinstance(json.load(f), dict)  # a part of an object is no JSON
    except (ValueError, tf.errors.NotFoundError):
        return False


def read_manifest(path: str) -> Any:
    """The manifest of a checkpoint.

    Args:
        path: folder of the checkpoint.

    Raises:
        ValueError: it is no manifest of such a checkpoint.
    """
    with tf.io.gfile.GFile(posixpath.join(path, MANIFEST)) as f:
        manifest = json.load(f)
    if not isinstance(manifest, dict) or manifest.get(_KEY) not in (1, 2):
        raise ValueError(f"{path}: is no checkpoint of servers, or one of a later version")
    return manifest


def write_manifest(path: str, manifest: dict[str, Any]) -> None:
    """Writes the manifest, which completes a checkpoint.

    Args:
        path: folder of the checkpoint.
        manifest: its content, without its version.
    """
    version = 1 if manifest.get("base") is None else 2
    part = posixpath.join(path, MANIFEST + ".part")
    with tf.io.gfile.GFile(part, "w") as f:
        f.write(json.dumps({_KEY: version, **manifest}, indent=1))
    tf.io.gfile.rename(part, posixpath.join(path, MANIFEST))


def chain_of(path: str) -> list[str]:
    """The checkpoints that are needed to restore one.

    Args:
        path: folder of the checkpoint.

    Returns:
        The folders, from the one that has all rows to `path`.

    Raises:
        ValueError: the bases do not end.
        tf.errors.NotFoundError: one of them is missing.
    """
    chain = [path]
    while (base := read_manifest(chain[0]).get("base")) is not None:
        found = posixpath.join(posixpath.dirname(path), posixpath.basename(base))
        if found in chain:
            raise ValueError(f"{path}: its bases form a circle")
        chain.insert(0, found)
    return chain


def remove_old(folder: str, keep: int) -> None:
    """Removes all checkpoints before the last complete ones, but none that these need.

    Args:
        folder: of the checkpoints.
        keep: how many complete ones to keep, at least 1.
    """
    checkpoints = list_all(folder)
    kept = complete(checkpoints)[-keep:]
    needed = {path for each in kept for path in _existing_chain(each)}
    for path in reversed(checkpoints[: checkpoints.index(kept[0])]):  # the bases last
        if path not in needed:
            tf.io.gfile.rmtree(path)


def _existing_chain(path: str) -> list[str]:
    """The chain of a checkpoint; the checkpoint alone if one of its bases was removed."""
    try:
        return chain_of(path)
    except tf.errors.NotFoundError:
        return [path]
