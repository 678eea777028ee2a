"""The files of a scorer: whole arrays, or the rows that differ from those of an earlier scorer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twml_ops._scorer import FORMAT, FORMAT_WITH_BASE, PROGRAM_FILE
from twml_ops.export.array_files import save_array

_LEAST_BYTES = 1 << 20  # smaller arrays are always written as a whole
_LARGEST_SHARE = 0.25  # of the rows of an array; more of them are written as the whole array
_BLOCK_BYTES = 1 << 22


class _Changes(NamedTuple):
    rows: NDArray[np.int64]
    values: NDArray[Any]


def write_scorer(
    folder: Path,
    program: dict[str, Any],
    files: Mapping[str, NDArray[Any]],
    base: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a scorer. The program is written last: without it the folder is not complete.

    Args:
        folder: where to write; it is created.
        program: what `PROGRAM_FILE` has, without the format.
        files: the arrays by the names of their files, to which the steps of the program refer.
        base: an earlier scorer in the same parent folder, of which the large arrays are used with
            the changes. If it has a base itself, that one is used.

    Raises:
        FileNotFoundError: `base` is no scorer.
        ValueError: `base` is in another parent folder, is `folder`, or has no fingerprint.
    """
    text = {"format": FORMAT, **program, "fingerprint": _fingerprint(program, files)}
    changes: dict[str, _Changes] = {}
    if base is not None:
        whole, fingerprint = _whole_base(Path(base), folder)
        changes = dict(_changes(whole, files))
        if changes:
            text["format"] = FORMAT_WITH_BASE
            text["base"] = {"folder": whole.name, "fingerprint": fingerprint}
            text["steps"] = [_with_changes(step, changes) for step in program["steps"]]
    folder.mkdir(parents=True, exist_ok=True)
    checksums = {}
    for file, array in files.items():
        if file not in changes:
            checksums[file] = save_array(folder / file, array)
            continue
        for name, part in zip(_names(file), changes[file], strict=True):
            checksums[name] = save_array(folder / name, part)
    text["checksums"] = checksums
    (folder / PROGRAM_FILE).write_text(json.dumps(text, indent=1) + "\n")


def _fingerprint(program: dict[str, Any], files: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(json.dumps(program).encode(), digest_size=16)
    for file, array in files.items():
        digest.update(f"{file} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()


def _whole_base(base: Path, folder: Path) -> tuple[Path, str]:
    """The folder that has all arrays as a whole, and its fingerprint."""
    base = base.resolve()
    program = json.loads((base / PROGRAM_FILE).read_text())
    if "base" in program:
        base = base.parent / program["base"]["folder"]
        program = json.loads((base / PROGRAM_FILE).read_text())
    if base.parent != folder.resolve().parent or base == folder.resolve():
        raise ValueError(f"base must be another folder in {folder.resolve().parent}, got {base}")
    if "fingerprint" not in program:
        raise ValueError(f"base must have a fingerprint; export {base} again")
    return base, program["fingerprint"]


def _changes(base: Path, files: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, _Changes]]:
    """The changed rows of each large array of which not too many rows differ."""
    for file, array in files.items():
        if array.nbytes < _LEAST_BYTES or not (base / file).exists():
            continue
        old = np.load(base / file, mmap_mode="r")
        if old.dtype != array.dtype or old.shape != array.shape:
            continue
        rows = _different_rows(old, array)
        if len(rows) <= _LARGEST_SHARE * len(array):
            yield file, _Changes(rows, array[rows])


def _different_rows(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.int64]:
    """The rows in which any bit differs."""
    step = max(1, _BLOCK_BYTES * len(new) // new.nbytes)
    found = []
    for begin in range(0, len(new), step):
        a, b = (
            np.ascontiguousarray(x[begin : begin + step]).view(np.uint8).reshape(-1, row)
            for x in (old, new)
            for row in [new.nbytes // len(new)]
        )
        found.append(np.flatnonzero((a != b).any(axis=1)) + begin)
    return np.concatenate(found).astype(np.int64)


def _names(file: str) -> tuple[str, str]:
    """The files of the numbers and of the values of changed rows."""
    stem = file.removesuffix(".npy")
    return f"{stem}_rows.npy", f"{stem}_values.npy"


def _with_changes(step: dict[str, Any], changes: Mapping[str, _Changes]) -> dict[str, Any]:
    arrays = {
        key: dict(zip(("file", "rows", "values"), (file, *_names(file)), strict=True))
        if file in changes
        else file
        for key, file in step["arrays"].items()
    }
    return {**step, "arrays": arrays}
