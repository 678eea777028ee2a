"""The manifest of a checkpoint: what it holds, where, and with which checksums.

A checkpoint, of one process or of a cluster, is a folder. Its data files are written first and its
manifest last, so a folder without a valid manifest is no checkpoint. The manifest is JSON,
{"checksum": ..., "content": ...}; the checksum of its own content finds a manifest that was written
in part, on a file system where renaming is not atomic, or changed later.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops.checkpoint import bundles
from twml_ops.checkpoint.bundles import BUNDLE, Bundle
from twml_ops.checkpoint.errors import CheckpointDamaged, CheckpointError
from twml_ops.checkpoint.locations import Location, read_bytes, write_file

MANIFEST = "manifest.json"
FORMAT = "twml_ops.checkpoint"
VERSION = 1
RAW = "raw"
SHARDS = "shards"  # a key of the values: how a cluster has divided its tables
_KINDS = {"sequence": int, "step": int, "values": dict, "base": str | None, "written": str}
_FIRST_OF_CLUSTERS = "twml_ops_checkpoint"  # a key of manifests that clusters wrote at first


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """The CRC-32 of bytes, or of these bytes after other bytes, whose checksum is `before`."""
    return zlib.crc32(data, before)


@dataclasses.dataclass(frozen=True)
class VariableEntry:
    """The value of a variable, or of its changed rows, in a data file.

    Attributes:
        name: unique in the checkpoint, and the same in every process that builds the same model.
        label: name for people; Keras numbers layers, so it may differ between processes.
        dtype: name of the type of an element, such as "float32".
        shape: the shape of the whole variable.
        file: name of the data file, in the folder of the checkpoint.
        offset: the offset of the first byte in that file.
        bytes: how many there are.
        checksum: CRC-32 of these bytes.
        encoding: how these bytes hold the value. "raw": all elements in C order, little-endian.
            "bundle": they are the index of a bundle of tensors, which a server has written.
        details: arguments of other encodings; of a bundle, the bytes of its data files.

    Raises:
        ValueError: a size, the file or the type is not valid.
    """

    name: str
    label: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    bytes: int
    checksum: int
    encoding: str = RAW
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.details, dict):
            raise ValueError(f"{self.label}: details must be an object")
        data_bytes = self.details.get("data_bytes", 0)
        whole = [self.offset, self.bytes, self.checksum, data_bytes, *self.shape]
        if not all(isinstance(n, int) and n >= 0 for n in whole):
            raise ValueError(f"{self.label}: sizes must be integers of at least 0")
        if self.file != Path(self.file).name:
            raise ValueError(f"{self.label}: file must be a plain name, got {self.file!r}")
        if self.encoding == RAW and self.bytes != math.prod(self.shape) * _item_bytes(self.dtype):
            raise ValueError(f"{self.label}: {self.bytes} bytes are not {self.dtype} {self.shape}")

    @property
    def bundle(self) -> Bundle:
        """The files of a bundle, if the encoding is "bundle"."""
        return Bundle(self.bytes, self.checksum, self.details.get("data_bytes", 0))


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint.

    Attributes:
        sequence: number of the checkpoint in its folder; a later one has a larger number.
        step: the step of the optimizer.
        entries: the variables.
        values: everything that is no array, such as the position in the input, as JSON has it.
        base: name of the folder of the checkpoint that this one has the changes to; None: it is
            complete in itself.
        written: when, in UTC, as ISO 8601.
    """

    sequence: int
    step: int
    entries: tuple[VariableEntry, ...]
    values: dict[str, Any]
    base: str | None = None
    written: str = ""

    @property
    def data_bytes(self) -> int:
        """Bytes of all variables, as they are stored."""
        return sum(entry.bytes + entry.details.get("data_bytes", 0) for entry in self.entries)

    def write(self, folder: Location) -> None:
        """Writes the manifest, which completes the checkpoint.

        Args:
            folder: the folder of the checkpoint, whose data files are on the disk.

        Raises:
            OSError: the file cannot be written.
        """
        content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        text = _canonical(content)
        whole = json.dumps({"checksum": checksum(text), "content": json.loads(text)}, indent=1)
        write_file(folder / MANIFEST, whole.encode())

    @staticmethod
    def read(folder: Location) -> Manifest:
        """Reads the manifest of a checkpoint.

        Args:
            folder: the folder of the checkpoint.

        Returns:
            The manifest.

        Raises:
            CheckpointDamaged: it is damaged, or a later version has written it.
            CheckpointError: there is none, or only a part of one.
        """
        path = folder / MANIFEST
        try:
            whole = json.loads(read_bytes(path))
            first_of_clusters = whole.get(_FIRST_OF_CLUSTERS) == 1
            if not first_of_clusters:
                expected, content = whole["checksum"], whole["content"]
                complete = checksum(_canonical(content)) == expected
        except OSError as e:
            raise CheckpointError(f"{folder}: no checkpoint: {path.name}: {e.strerror}") from e
        except ValueError as e:
            raise CheckpointError(f"{path}: is no manifest of a checkpoint") from e
        except (KeyError, TypeError, AttributeError, RecursionError) as e:
            raise CheckpointDamaged(f"{path}: is no manifest of a checkpoint") from e
        if first_of_clusters:
            return _of_first_clusters(folder, whole)
        if not complete:
            raise CheckpointDamaged(f"{path}: is damaged: its checksum differs")
        return _parse(path, content)


def bundle_entry(folder: Location, prefix: str, synced: bool = False) -> VariableEntry:
    """The entry of a bundle of tensors.

    Args:
        folder: the folder of the checkpoint.
        prefix: the prefix of the names of the files.
        synced: whether to wait until the files are on the disk.

    Raises:
        OSError: a file is missing or cannot be read.
    """
    size, crc, data_bytes = bundles.describe(folder, prefix, synced)
    file, details = f"{prefix}{bundles.INDEX}", {"data_bytes": data_bytes}
    return VariableEntry(prefix, prefix, "uint8", (size,), file, 0, size, crc, BUNDLE, details)


def _of_first_clusters(folder: Location, whole: Mapping[str, Any]) -> Manifest:
    """A manifest that has no entries and no checksum of its own."""
    try:
        servers, shards = int(whole["servers"]), {**whole, "by_rows": []}
        files = [f"server-{i}-of-{servers}" for i in range(servers) if whole["tables"]]
        files += ["dense"] * bool(whole["dense"])
        entries = tuple(bundle_entry(folder, file) for file in files)
        return Manifest(-1, int(whole["step"]), entries, {SHARDS: shards})
    except (OSError, KeyError, TypeError, ValueError) as e:
        raise CheckpointDamaged(f"{folder}: is damaged: {e}") from e


def _item_bytes(dtype: str) -> int:
    try:
        return int(tf.as_dtype(dtype).size)
    except TypeError as e:
        raise ValueError(f"unknown type {dtype!r}") from e


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _parse(path: Location, content: Any) -> Manifest:
    try:
        if content["format"] != FORMAT:
            raise CheckpointDamaged(
                f"{path}: is of the format {content['format']!r}, not {FORMAT!r}"
            )
        if content["version"] > VERSION:
            raise CheckpointDamaged(
                f"{path}: is of the version {content['version']}, and this version of twml_ops "
                f"reads checkpoints up to version {VERSION}"
            )
        fields = {k: v for k, v in content.items() if k not in ("format", "version")}
        entries = tuple(
            VariableEntry(**{**e, "shape": tuple(e["shape"])}) for e in fields.pop("entries")
        )
        made = Manifest(entries=entries, **fields)
        for name, kind in _KINDS.items():
            if not isinstance(getattr(made, name), kind):
                raise ValueError(f"{name} must be {kind}, got {getattr(made, name)!r:.100}")
        return made
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        if isinstance(e, CheckpointError):
            raise
        raise CheckpointDamaged(f"{path}: is no manifest of a checkpoint: {e}") from e
