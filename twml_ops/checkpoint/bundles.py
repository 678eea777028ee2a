"""Files that TensorFlow's ops have written into a checkpoint: bundles of tensors.

A server writes its own tensors, so their bytes do not pass through the process that commits the
checkpoint. That process reads the index of each bundle, which has a checksum for each tensor, and
notes the checksum of the index and the size of the data in the manifest.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import tensorflow as tf

from twml_ops.checkpoint.errors import CheckpointDamaged
from twml_ops.checkpoint.locations import Location, read_bytes, size_of, sync

BUNDLE = "bundle"
"""The encoding of the entry of a bundle, whose `name` is the prefix of its files."""

INDEX = ".index"


class Bundle(NamedTuple):
    """The entry of a bundle in a manifest.

    Attributes:
        index_bytes: size of the index.
        index_checksum: CRC-32 of the index.
        data_bytes: size of all data files.
    """

    index_bytes: int
    index_checksum: int
    data_bytes: int


def describe(folder: Location, prefix: str, synced: bool = False) -> Bundle:
    """Describes a bundle.

    Args:
        folder: the folder of the checkpoint.
        prefix: the prefix of the names of the files.
        synced: whether to wait until the files are on the disk.

    Raises:
        OSError: a file is missing or cannot be read.
    """
    data = [path for path in folder.iterdir() if path.name.startswith(f"{prefix}.data-")]
    if synced:
        for path in (*data, folder / f"{prefix}{INDEX}"):
            sync(path)
    index = read_bytes(folder / f"{prefix}{INDEX}")
    return Bundle(len(index), zlib.crc32(index), sum(map(size_of, data)))


def verify_files(folder: Location, prefix: str, expected: Bundle) -> None:
    """Compares the files of a bundle with what the manifest says, without reading the tensors.

    Args:
        folder: the folder of the checkpoint.
        prefix: the prefix of the names of the files.
        expected: what the manifest says.

    Raises:
        CheckpointDamaged: a file is missing, has another size, or the index is changed.
    """
    try:
        found = describe(folder, prefix)
    except OSError as e:
        raise CheckpointDamaged(f"{folder}: {prefix} is damaged: {e.strerror}") from e
    if found != expected:
        raise CheckpointDamaged(f"{folder}: {prefix} is damaged: {found}, expected {expected}")


def verify_tensors(folder: Location, prefix: str) -> None:
    """Compares all tensors of a bundle with their checksums.

    Args:
        folder: the folder of the checkpoint.
        prefix: the prefix of the names of the files.

    Raises:
        CheckpointDamaged: one is damaged.
    """
    name = ""
    try:
        reader = tf.train.load_checkpoint(str(folder / prefix))
        for name in sorted(reader.get_variable_to_shape_map()):
            reader.get_tensor(name)
    except Exception as e:  # the reader raises the same error as different types
        raise CheckpointDamaged(f"{folder}: {prefix}: {name} is damaged: {e}") from e
