"""What the readers of columns, from files named by a pattern, have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from glob import glob
from pathlib import Path

import numpy as np

from twml_ops.data.block import Array, Block, Numbers, Rows
from twml_ops.data.errors import DataError

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
}
"""The kind of the files whose names end so, before a .gz."""


def files_of(pattern: str) -> list[str]:
    """The files that a path or pattern names, sorted; of a folder all files in it.

    Those whose names, or folders' names, begin with `_` or `.` are left out of a folder, as are the
    marks that Hadoop and Spark write.

    Raises:
        FileNotFoundError: there are none.
    """
    pattern = str(Path(pattern).expanduser())
    named = [pattern] if Path(pattern).exists() else glob(pattern, recursive=True)
    files = set()
    for path in map(Path, named):
        if path.is_file():
            files.add(str(path))
        elif path.is_dir():
            inside = (p for p in path.rglob("*") if p.is_file())
            files.update(str(p) for p in inside if not _is_mark(p.relative_to(path)))
    if not files:
        what = "no files in this folder" if Path(pattern).is_dir() else "no such file"
        raise FileNotFoundError(f"{pattern}: {what}")
    return sorted(files)


def kind_of(path: str) -> str | None:
    """The kind of source that the suffixes of the files say; None if they do not.

    Args:
        path: of a file, a folder or a pattern.

    Raises:
        DataError: the files of a folder or pattern are of several kinds.
    """
    kind = _kind_of_name(path)
    if kind is not None:
        return kind
    try:
        files = files_of(path)
    except FileNotFoundError:
        return None
    kinds = {_kind_of_name(file): file for file in files}
    if len(kinds) > 1:
        examples = ", ".join(kinds.values())
        raise DataError(f"{path}: files of one kind are expected, got {examples}")
    return next(iter(kinds))


def _kind_of_name(path: str) -> str | None:
    name = path.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def _is_mark(path: Path) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in path.parts)


def binary_labels(raw: Array, where: Callable[[int], str], name: str = "label") -> Array:
    """float32 [R]: 1 where the label is 1, 0 where it is 0 or -1.

    Args:
        raw: numbers [R].
        where: gives file and line of a row, for the message.
        name: the name of the column.

    Raises:
        DataError: a label is something else.
    """
    bad = ~np.isin(raw, (-1, 0, 1))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(f"{where(row)}: {name} must be 0 or 1 (-1 counts as 0), got {raw[row]}")
    return (raw > 0).astype(np.float32)


def finite_numbers(table: Array, names: Sequence[str], where: Callable[[int], str]) -> Numbers:
    """The cells of `table` (float64 [R, C], NaN = missing) as float32.

    Raises:
        DataError: a number is infinite, or is so in float32; names its row and column.
    """
    with np.errstate(over="ignore"):
        numbers = table.astype(np.float32)
    infinite = np.isinf(numbers)
    if infinite.any():
        row, column = divmod(int(infinite.argmax()), len(names))
        got = table[row, column]
        raise DataError(f"{where(row)}: {names[column]} must be finite in float32, got {got}")
    return Numbers(numbers)


def check_sparse(rows: Rows, dim: int | None, where: Callable[[int], str]) -> None:
    """Ids are in [0, dim) and values are finite.

    Raises:
        DataError: one is not; names its row.
    """
    limit = np.iinfo(np.int64).max if dim is None else dim
    bad = (rows.ids < 0) | (rows.ids >= limit)
    values = np.zeros(0, np.float32) if rows.values is None else rows.values
    for wrong, message in (
        (bad, f"ids must be in [0, {limit}), the id space of the training data"),
        (~np.isfinite(values), "values must be finite"),
    ):
        if wrong.any():
            k = int(wrong.argmax())
            row = int(np.searchsorted(rows.row_splits, k, side="right")) - 1
            got = rows.ids[k] if wrong is bad else values[k]
            raise DataError(f"{where(row)}: {message}, got {got}")


def sparse_dim_of(blocks: Iterable[Block]) -> int:
    """The size of the id space: the largest sparse id + 1, at least 1."""
    return 1 + max((int(b.groups["sparse"].ids.max(initial=0)) for b in blocks), default=0)
