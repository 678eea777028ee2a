"""Opens the source that a string such as the value of `--data` describes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from twml_ops.data.column_uses import NO_USES, ColumnUses
from twml_ops.data.criteo import CriteoSource
from twml_ops.data.csv import CsvSource
from twml_ops.data.errors import DataError, listed, quote, shown
from twml_ops.data.files import SUFFIXES, kind_of
from twml_ops.data.flights import FlightsSource
from twml_ops.data.libsvm import LibsvmSource
from twml_ops.data.parquet import ParquetSource
from twml_ops.data.remote import is_remote
from twml_ops.data.schema import Schema
from twml_ops.data.schema_file import read_schema
from twml_ops.data.source import RowRange, Source

SCHEMES = ("flights", "criteo:PATH", "libsvm:PATH", "csv:GLOB", "parquet:GLOB", "tfrecord:GLOB")
"""The forms of a SOURCE string."""

_FIXED = ("flights", "criteo", "libsvm")  # sources whose features no schema can change
_SOURCE = re.compile(
    r"(?P<scheme>[a-z]+)(:(?P<path>.+?))?(\[(?P<start>\d*):(?P<stop>\d*)\])?(\?dim=(?P<dim>\d+))?",
    re.DOTALL,
)
_PATH = re.compile(
    r"(?P<path>.+?)(\[(?P<start>\d*):(?P<stop>\d*)\])?(\?dim=(?P<dim>\d+))?", re.DOTALL
)


def open_source(
    source: str,
    *,
    like: Schema | None = None,
    schema: Schema | str | Path | None = None,
    labels: Sequence[str] | None = None,
    uses: ColumnUses | None = None,
) -> Source:
    """The reader of a SOURCE string.

    Args:
        source: `flights`, `criteo:PATH`, `libsvm:PATH`, `csv:GLOB`, `parquet:GLOB` or
            `tfrecord:GLOB`, or the path, pattern or folder of such files alone, whose suffix says
            the kind. Paths, except of TFRecord files, may be s3://BUCKET/KEY or gs://BUCKET/KEY.
            A text PATH may end in .gz. `[A:B]` at the end takes the examples
            A .. B only (from 0, B excluded, either may be left out). `?dim=N` at the very end is
            the size of the id space of raw `id:value` features; without it, it is found by a
            pass over the data.
        like: the schema of the training data, when this is data for the same model: the id
            space and the hash of categories are the same, and features that are missing are an
            error. Columns of CSV, Parquet and TFRecord files that it does not name are left out.
            `like=schema.without_labels()` reads examples that are only predicted.
        schema: the uses of the columns of CSV, Parquet or TFRecord files: a schema, or the path
            of a file as `twml-ops schema` writes it. Default: by the types of the columns.
        labels: names of the label columns of CSV, Parquet or TFRecord files without a `schema`.
            Default: `label`.
        uses: what the user says of the columns of CSV, Parquet or TFRecord files without a
            `schema`; the others are what they look like, see `Source.findings`.

    Returns:
        The source; only its beginning has been read.

    Raises:
        ValueError: more than one of `like`, `schema` and `labels` are given.
        FileNotFoundError: nothing is there.
        DataError: the kind of source is unknown, the data cannot be read, or it lacks features of
            `like`.
    """
    match, scheme, path = _kind_of(source)
    if like is not None and schema is not None:
        raise ValueError("only one of like and schema can be given, got both")
    if labels is not None and (like is not None or schema is not None):
        raise ValueError("a schema has its own labels: it cannot be given together with labels")
    given = read_schema(schema) if isinstance(schema, (str, Path)) else schema or like
    if schema is not None and scheme in _FIXED:
        raise DataError(f"{quote(source)}: `{scheme}` takes no schema, its features are fixed")
    if uses is not None and uses != NO_USES and given is not None:
        raise ValueError("a schema has its own uses of columns: it cannot be given with uses")
    uses = uses or NO_USES
    if labels is not None:
        uses = dataclasses.replace(uses, labels=tuple(labels))
    if uses != NO_USES and scheme in _FIXED:
        what = "labels, its label is" if labels is not None else "uses of columns, they are"
        raise DataError(f"{quote(source)}: `{scheme}` takes no {what} fixed")
    opened = _open(scheme, path, match["dim"], source, given, uses)
    if match["start"] is not None:
        start, stop = match["start"], match["stop"]
        opened = RowRange(opened, int(start or 0), int(stop) if stop else None)
    if given is not None:
        got = opened.schema if given.labels else opened.schema.without_labels()
        if got != given:
            raise DataError(f"{source}: {_difference(got, given)}")
    return opened


def _kind_of(source: str) -> tuple[re.Match[str], str, str | None]:
    """The parts of a source, its kind and its path.

    Raises:
        FileNotFoundError: it is a path without a kind, at which nothing is.
        DataError: its kind is unknown.
    """
    match = _SOURCE.fullmatch(source)
    scheme = match["scheme"] if match else ""
    if match is not None and scheme in {s.split(":")[0] for s in SCHEMES}:
        return match, scheme, match["path"]
    if re.match("[a-z0-9]+://", source) and not is_remote(source):
        raise DataError(
            f"{quote(source)}: of the files of other machines only s3:// and gs:// are read; copy "
            "them, or mount their place as a folder"
        )
    match = _PATH.fullmatch(source)
    path = match["path"] if match else ""
    kind = kind_of(path)
    if match is None or kind is None:
        raise DataError(
            f"unknown source {quote(source)}: expected one of {', '.join(SCHEMES)}, or a path that "
            f"ends in {', '.join(SUFFIXES)}, or a folder of such files"
        )
    return match, kind, path


def _open(
    scheme: str,
    path: str | None,
    dim: str | None,
    source: str,
    schema: Schema | None,
    uses: ColumnUses,
) -> Source:
    if scheme == "flights":
        if path or dim:
            raise DataError(f"{quote(source)}: `flights` takes no path and no dim")
        return FlightsSource()
    if path is None:
        raise DataError(f"{quote(source)}: expected `{scheme}:` followed by a path")
    name = f"{scheme}:{path}"
    if scheme in ("criteo", "csv"):
        if dim:
            raise DataError(f"{quote(source)}: `{scheme}` takes no dim")
        if scheme == "csv":
            return CsvSource(name, path, schema=schema, uses=uses)
        return CriteoSource(name, path)
    if dim is not None and int(dim) < 1:
        raise DataError(f"{quote(source)}: dim must be at least 1")
    size = int(dim) if dim else schema.sparse_dim or None if schema else None
    if scheme == "libsvm":
        return LibsvmSource(name, path, size)
    if scheme == "parquet":
        return ParquetSource(
            name,
            path,
            size,
            schema=schema,
            uses=uses,
        )
    from twml_ops.data.tfrecord import TFRecordSource  # which imports TensorFlow

    return TFRecordSource(name, path, size, schema=schema, uses=uses)


def _difference(got: Schema, expected: Schema) -> str:
    for field in ("continuous", "categorical"):
        ours, theirs = set(getattr(got, field)), set(getattr(expected, field))
        for what, names in (
            (f"lacks {field} features of", theirs - ours),
            (f"adds {field} features to the features of", ours - theirs),
        ):
            if names:
                return f"{what} the training data: {listed(sorted(names))}"
    different = (f.name for f in dataclasses.fields(Schema) if f.compare)
    name = next(n for n in different if getattr(got, n) != getattr(expected, n))
    return (
        f"the features must be the same as in the training data: expected {name} "
        f"{shown(getattr(expected, name))}, got {shown(getattr(got, name))}"
    )
