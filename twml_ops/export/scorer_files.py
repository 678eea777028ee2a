"""The files of a scorer: whole arrays, or the rows that differ from an earlier scorer's rows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twml_ops._publish import sync, write_file
from twml_ops._scorer import FORMAT, FORMAT_WITH_BASE, FORMAT_WITH_OUTPUTS, PROGRAM_FILE
from twml_ops.export.array_files import bytes_of, save_array
from twml_ops.export.scorer_layout import difference, layout_digests

_LEAST_BYTES = 1 << 20  # smaller arrays are always written as a whole
_LARGEST_SHARE = 0.25  # of the rows of an array; more of them are written as the whole array
_BLOCK_BYTES = 1 << 22


class RowChanges(NamedTuple):
    """Rows of a large array that replace rows of an earlier scorer.

    Attributes:
        rows: int64 [C], their numbers, ascending.
        values: [C, ...].
        num_rows: rows of the whole array.
    """

    rows: NDArray[np.int64]
    values: NDArray[Any]
    num_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return (self.num_rows, *self.values.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an item."""
        return self.values.dtype


Files = Mapping[str, "NDArray[Any] | RowChanges"]


class Written(NamedTuple):
    """The result of `write_scorer`.

    Attributes:
        folder: the folder.
        base: the folder of which it has the changed rows; None: all arrays are whole.
        rows: number of changed rows of all arrays.
        bytes: size of all files.
        reason: why all arrays are whole, or "".
    """

    folder: Path
    base: Path | None
    rows: int
    bytes: int
    reason: str


def write_scorer(
    folder: Path,
    program: dict[str, Any],
    files: Files,
    base: str | os.PathLike[str] | None = None,
) -> Written:
    """Writes a scorer. The program is written last: without it the folder is not complete.

    With a base, large arrays are written as changed rows if the two have the same layout (see
    `layout_digests`).

    Args:
        folder: where to write; it is created.
        program: what `PROGRAM_FILE` has, without the format.
        files: the arrays by the names of their files, to which the steps of the program refer. Of
            large ones, the rows that changed since `base` are enough.
        base: an earlier scorer in the same parent folder, of which the large arrays are used with
            the changes. If it has a base itself, that one is used, with its changes.

    Returns:
        What was written.

    Raises:
        FileNotFoundError: `base` is no scorer.
        ValueError: `base` is in another parent folder, is `folder`, or has no fingerprint; or there
            are changed rows of an array that `base` does not have.
    """
    layout = layout_digests(program, {f: (a.dtype.str, a.shape) for f, a in files.items()}, files)
    text = {"format": _format(program, False), **program, "layout": layout}
    earlier = None if base is None else EarlierScorer(Path(base), folder)
    reason = "there is no earlier version" if earlier is None else earlier.differs(layout)
    made: dict[str, Any] = dict(files)
    if earlier is not None:
        made = {f: earlier.whole_or_changed(f, a, not reason) for f, a in files.items()}
        if not reason and not any(isinstance(a, RowChanges) for a in made.values()):
            reason = "it has no large array of which few rows changed"
    changes = {file: array for file, array in made.items() if isinstance(array, RowChanges)}
    text["fingerprint"] = _fingerprint(program, made, earlier)
    if changes:
        assert earlier is not None
        text["format"] = _format(program, True)
        text["base"] = {"folder": earlier.whole.name, "fingerprint": earlier.fingerprint}
        text["steps"] = [_with_changes(step, changes) for step in program["steps"]]
    elif reason:
        text["whole"] = reason
    folder.mkdir(parents=True, exist_ok=True)
    checksums: dict[str, list[int]] = {}
    for file, array in made.items():
        parts = zip(_names(file), array[:2], strict=True) if file in changes else [(file, array)]
        for name, part in parts:
            checksums[name] = save_array(folder / name, part)
            if part.nbytes >= _LEAST_BYTES:  # scorers may map it and not compare all bytes
                sync(folder / name)
    text["checksums"] = checksums
    write_file(folder / PROGRAM_FILE, _with_checksum(text))
    size = sum((folder / name).stat().st_size for name in (*checksums, PROGRAM_FILE))
    rows = sum(len(c.rows) for c in changes.values())
    return Written(folder, earlier.whole if earlier and changes else None, rows, size, reason)


def _format(program: Mapping[str, Any], has_base: bool) -> int:
    """The oldest format that has all of a program, so that earlier versions read most folders."""
    if "outputs" in program:
        return FORMAT_WITH_OUTPUTS
    return FORMAT_WITH_BASE if has_base else FORMAT


def version_folders(folder: Path) -> list[Path]:
    """The folders whose names are numbers of versions, from the oldest to the newest."""
    found = [path for path in folder.glob("*") if re.fullmatch(r"[0-9]{1,18}", path.name)]
    return sorted(found, key=lambda path: int(path.name))


def base_name(folder: Path) -> str | None:
    """The name of the folder of which a scorer has the changed rows; None if it is whole.

    Raises:
        ValueError: its program is damaged.
    """
    try:
        return _base_of(_read_program(folder))
    except FileNotFoundError:
        return None


def _read_program(folder: Path) -> dict[str, Any]:
    path = folder / PROGRAM_FILE
    try:
        program = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path}: is damaged: {e}") from e
    if not isinstance(program, dict):
        raise ValueError(f"{path}: must be an object, got {type(program).__name__}")
    return program


def _base_of(program: Mapping[str, Any]) -> str | None:
    if "base" not in program:
        return None
    base = program["base"]
    name = base.get("folder") if isinstance(base, dict) else None
    if not isinstance(name, str):
        raise ValueError('"base" of a scorer must have the name of a folder')
    return name


class EarlierScorer:
    """A scorer that a new one has the changes to.

    Args:
        path: its folder.
        folder: the folder of the new scorer, in the same parent folder.

    Attributes:
        whole: the folder that has all arrays as a whole: this one, or its base.
        fingerprint: the fingerprint of `whole`.

    Raises:
        FileNotFoundError: it is no scorer.
        ValueError: it is damaged, in another parent folder, is `folder`, or has no fingerprint.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path.resolve()
        self._program = program = _read_program(self._path)
        self.whole = self._path
        if name := _base_of(program):
            self.whole = self._path.parent / name
            program = _read_program(self.whole)
        parent = folder.resolve().parent
        if self.whole.parent != parent or self.whole == folder.resolve():
            raise ValueError(f"base must be another folder in {parent}, got {self.whole}")
        if "fingerprint" not in program:
            raise ValueError(f"base must have a fingerprint; export {self.whole} again")
        self.fingerprint: str = program["fingerprint"]
        self._layout: dict[str, str] | None = program.get("layout")

    def differs(self, layout: Mapping[str, str]) -> str:
        """The reason why a scorer with this layout cannot have the changed rows of this one, or
        "".
        """
        if self._layout is None:
            return f"{self.whole.name} does not say what its rows mean"
        parts = difference(layout, self._layout)
        return f"the {parts} of {self.whole.name} differ" if parts else ""

    def whole_or_changed(
        self, file: str, array: NDArray[Any] | RowChanges, same_layout: bool
    ) -> NDArray[Any] | RowChanges:
        """The rows of an array that differ from the base, or the whole array if they are many.

        Args:
            file: the name of its file.
            array: the array, or the rows that changed since this scorer.
            same_layout: whether changed rows are possible.

        Raises:
            ValueError: rows changed of an array that this scorer does not have.
        """
        base = None
        if (self.whole / file).exists():
            base = np.load(self.whole / file, mmap_mode="r")
            if base.dtype != array.dtype or base.shape != array.shape:
                base = None
        if isinstance(array, RowChanges):
            if base is None:
                raise ValueError(f"{self.whole} has no array {file} of {array.shape}")
            changed = self._added_up(file, array)
            if same_layout and len(changed.rows) <= _LARGEST_SHARE * changed.num_rows:
                return changed
            whole = np.array(base)
            whole[changed.rows] = changed.values
            return whole
        if base is None or not same_layout or array.nbytes < _LEAST_BYTES:
            return array
        rows = _different_rows(base, array)
        if len(rows) > _LARGEST_SHARE * len(array):
            return array
        return RowChanges(rows, array[rows], len(array))

    def _added_up(self, file: str, new: RowChanges) -> RowChanges:
        """The changes to the base: the changes that this scorer has, and new ones."""
        names = _names(file)
        if not (self._path / names[0]).exists():
            return new
        old_rows, old_values = (np.load(self._path / name, mmap_mode="r") for name in names)
        changed = np.zeros(new.num_rows, np.bool_)
        changed[old_rows] = changed[new.rows] = True
        rows = np.flatnonzero(changed).astype(np.int64)
        values = np.empty((len(rows), *new.values.shape[1:]), new.values.dtype)
        values[np.searchsorted(rows, old_rows)] = old_values
        values[np.searchsorted(rows, new.rows)] = new.values
        return RowChanges(rows, values, new.num_rows)


def _fingerprint(program: dict[str, Any], files: Files, earlier: EarlierScorer | None) -> str:
    """Tells whether two folders are the same export."""
    digest = hashlib.blake2b(json.dumps(program).encode(), digest_size=16)
    for file, array in files.items():
        digest.update(f"{file} {array.dtype.str} {array.shape}".encode())
        if isinstance(array, RowChanges):
            assert earlier is not None
            digest.update(earlier.fingerprint.encode())
            digest.update(bytes_of(array.rows))
            digest.update(bytes_of(array.values))
        else:
            digest.update(bytes_of(array))
    return digest.hexdigest()


def _with_checksum(text: dict[str, Any]) -> bytes:
    """The text of a program. The first member is the checksum of what follows its comma."""
    rest = json.dumps(text, indent=1).encode().removeprefix(b"{") + b"\n"
    return b'{"crc32": %d,' % zlib.crc32(rest) + rest


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


def _with_changes(step: dict[str, Any], changes: Mapping[str, RowChanges]) -> dict[str, Any]:
    arrays = {
        key: dict(zip(("file", "rows", "values"), (file, *_names(file)), strict=True))
        if file in changes
        else file
        for key, file in step["arrays"].items()
    }
    return {**step, "arrays": arrays}
