"""Files of learned hash functions: what `twml-ops learn-hash` writes and models read."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from twml_ops._publish import new_file
from twml_ops.layers._id_row_map import Ints
from twml_ops.research.learned_hash import LearnedHash


def save_hash(layer: LearnedHash, fields: Sequence[str], path: str | Path) -> None:
    """Writes a learned hash to a file, which is replaced at once if it is a regular file.

    Args:
        layer: it has a map.
        fields: the names of its fields; the bags are the last ones.
        path: a NumPy archive, in general *.npz.

    Raises:
        ValueError: the layer has no map, or another number of fields.
        OSError: the file cannot be written, or `path` is a folder, a socket or a block device.
    """
    if len(fields) != layer.num_fields:
        raise ValueError(f"fields must be {layer.num_fields} names, got {len(fields)}")
    layer.num_rows  # noqa: B018  (an error if there is no map)
    arrays = {
        name: variable.numpy()
        for name, variable in zip(layer.state_names, layer.state_variables, strict=True)
    }
    names = np.array(fields, np.str_)
    with new_file(path, overwrite=True) as part, part.open("wb") as file:
        np.savez_compressed(file, fields=names, num_bags=np.int64(layer.num_bags), **arrays)


def load_hash(
    path: str | Path, fields: Sequence[str], num_bags: int = 0, name: str | None = None
) -> LearnedHash:
    """Reads a learned hash.

    Args:
        path: written by `save_hash`.
        fields: the names of the fields that it is used for.
        num_bags: how many of them are bags, at the end.
        name: the name of the layer.

    Returns:
        The layer.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no such file, or of other fields.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [str(n) for n in np.atleast_1d(file["fields"])]
            bags = int(file["num_bags"])
            arrays = [np.asarray(file[n], np.int64) for n in LearnedHash.state_names]
        _check(arrays, len(names))
    except (KeyError, TypeError, ValueError, EOFError, OSError, zipfile.BadZipFile) as e:
        if isinstance(e, FileNotFoundError):
            raise
        raise ValueError(f"{path}: is no file of a learned hash ({e})") from e
    if names != list(fields) or bags != num_bags:
        raise ValueError(
            f"{path}: is a hash of the fields {', '.join(names)} with {bags} bags, expected "
            f"{', '.join(fields)} with {num_bags}"
        )
    layer = LearnedHash(len(names), bags, name=name)
    for variable, value in zip(layer.state_variables, arrays, strict=True):
        variable.assign(value)
    return layer


def _check(arrays: list[Ints], fields: int) -> None:
    keys, numbers, hashed, others = arrays
    if keys.ndim != 1 or numbers.shape != keys.shape or not len(keys):
        raise ValueError("keys and rows must be vectors of one length")
    if hashed.shape != (fields,) or others.shape != (fields,):
        raise ValueError("hashed and sizes must be numbers of rows of each field")
    if min(hashed) < 1 or min(others) < 0:
        raise ValueError("hashed must be positive, and sizes not negative")
    last = int(np.max(hashed + others))
    if np.any(keys[1:] <= keys[:-1]) or numbers.min() < 0 or numbers.max() > last:
        raise ValueError("keys must be ascending, and rows in the tables")
