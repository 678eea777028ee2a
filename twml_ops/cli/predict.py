"""`twml-ops predict`: writes the predicted probability of each example."""

from __future__ import annotations

import contextlib
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from twml_ops.cli.options import BatchSize, Data, Debug, Overwrite, Run
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from twml_ops.data import Source

PREDICTION = "prediction"
_PARQUET = (".parquet", ".pq")
_GROUP_ROWS = 1 << 17  # of a row group of a Parquet file


def predict(
    run: Run,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; a table if it ends in .parquet. Default: the standard output.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Columns of --data that are written before the predictions, with a header, as CSV "
            "or Parquet; separate several by commas.",
            show_default=False,
        ),
    ] = None,
    batch_size: BatchSize = 8192,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Writes the predicted probability of each example on a line of its own, in order.

    With several labels a line has a probability for each, in the order of the schema, with tabs
    between them. CSV, Parquet and TFRecord files need the columns of the features only.

    With --keep a table is written: the columns as they are in the data, and the column
    `prediction`, or `prediction_LABEL` for each of several labels. --out says by its suffix whether
    it is Parquet, CSV with tabs (.tsv), or CSV.
    """
    from twml_ops.cli.configure import split_names

    predict_run(run, data, batch_size, out, overwrite, split_names(keep))


def predict_run(
    run: Path,
    data: str,
    batch_size: int,
    out: Path | None,
    overwrite: bool = False,
    keep: Sequence[str] = (),
) -> None:
    """Writes the predicted probability of each example, in order, without keeping them in memory.

    Args:
        run: folder of the run.
        data: SOURCE of the examples, without labels if it is of CSV, Parquet or TFRecord files.
        batch_size: number of examples in a batch.
        out: file to write; None: the standard output.
        overwrite: replace an existing file.
        keep: columns of the data to write before the predictions; none: lines of predictions are
            written, or a table of them if `out` ends in .parquet.

    Raises:
        UserError: the folder is not a finished run, `out` cannot be written, or a column to keep is
            not in the data or is named as a prediction.
        ValueError: data cannot be read.
    """
    from twml_ops.training.run_folder import optional_file, write_result
    from twml_ops.training.trained_run import TrainedRun

    with optional_file(out, overwrite) as file:
        trained = TrainedRun(run)
        source, labels = trained.unlabeled_source(data), trained.schema.labels
        names = [PREDICTION] if len(labels) == 1 else [f"{PREDICTION}_{n}" for n in labels]
        types = _kept_types(source, keep, names)

        def write(path: Path | None) -> None:
            with _checked(run, source):
                rows = _rows(trained.model, source, labels, batch_size)
                if out is not None and path is not None and out.suffix.lower() in _PARQUET:
                    _write_parquet(path, _tables(rows, source, types, names))
                elif keep:
                    tabs = out is not None and out.suffix.lower() == ".tsv"
                    tables = _tables(rows, source, types, names)
                    _write_text(path, lambda stream: _write_csv(stream, tables, names, tabs))
                else:
                    _write_text(path, lambda stream: _write_lines(stream, rows))

        if file is None or out is None:
            write(None)
        else:
            write_result(file, out, write)


def _kept_types(
    source: Source, keep: Sequence[str], predictions: Sequence[str]
) -> dict[str, pa.DataType]:
    """The types of the columns to keep.

    Raises:
        UserError: one is not in the data, is named twice, or is named as a prediction.
    """
    from twml_ops.data.errors import listed

    types = source.column_types() if keep else {}
    if keep and not types:
        raise UserError(
            f"--keep: {source.name} has no named columns; expected a CSV, Parquet or TFRecord file"
        )
    for i, name in enumerate(keep):
        if name not in types:
            raise UserError(
                f"--keep: {source.name} has no column {name}, its columns are {listed([*types])}"
            )
        if name in predictions:
            raise UserError(f"--keep: the column {name} has the name of the predictions")
        if name in keep[:i]:
            raise UserError(f"--keep: the column {name} is named twice")
    return {name: types[name] for name in keep}


@contextlib.contextmanager
def _checked(run: Path, source: Source) -> Iterator[None]:
    """Warns if what the block reads differs from what the run has seen. Errors keep their types."""
    from twml_ops.data import original_errors
    from twml_ops.training.sources import checked_features

    with original_errors(source), checked_features(run, source):
        yield


def _rows(
    model: Any, source: Source, labels: Sequence[str], batch_size: int
) -> Iterator[np.ndarray]:
    """The probabilities of each batch, with a column for each label."""
    from twml_ops.cli.console import make_error_console
    from twml_ops.cli.reporter import ConsoleReporter
    from twml_ops.training.evaluation import iter_predictions

    reporter = ConsoleReporter(make_error_console())
    return iter_predictions(model, source, reporter, labels, batch_size)


def _tables(
    rows: Iterator[np.ndarray],
    source: Source,
    types: Mapping[str, pa.DataType],
    predictions: Sequence[str],
) -> Iterator[pa.Table]:
    """The kept columns and the predictions, in tables of as many rows as a batch has.

    Raises:
        DataError: there are not as many rows as predictions.
    """
    import pyarrow as pa

    from twml_ops.data import DataError

    fields = {**types, **dict.fromkeys(predictions, pa.float32())}
    schema = pa.schema(fields.items())
    waiting = pa.schema(types.items()).empty_table()
    more = source.raw_columns(types) if types else iter(())
    empty = True
    for batch in rows:
        while types and len(waiting) < len(batch):
            following = next(more, None)
            if following is None:
                raise DataError(
                    f"{source.name}: has fewer rows than were predicted; is it being changed?"
                )
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([following])])
        columns = [*waiting.slice(0, len(batch)).columns, *map(pa.array, batch.T.copy())]
        waiting = waiting.slice(len(batch)).combine_chunks()
        yield pa.Table.from_arrays(columns, schema=schema)
        empty = False
    if empty:
        yield schema.empty_table()


def _write_text(path: Path | None, write: Callable[[TextIO], object]) -> None:
    """Writes to a file, or to the standard output."""
    if path is None:
        write(sys.stdout)
        return
    with path.open("w", encoding="utf-8", newline="") as stream:  # as it is, whatever the suffix
        write(stream)


def _write_lines(stream: TextIO, rows: Iterator[np.ndarray]) -> None:
    import numpy as np

    for batch in rows:
        np.savetxt(stream, batch, fmt="%.7g", delimiter="\t")


def _write_csv(
    stream: TextIO, tables: Iterator[pa.Table], predictions: Sequence[str], tabs: bool
) -> None:
    writer = csv.writer(stream, delimiter="\t" if tabs else ",", lineterminator="\n")
    for number, table in enumerate(tables):
        if number == 0:
            writer.writerow(table.column_names)
        columns = [_texts(name, table[name]) for name in table.column_names[: -len(predictions)]]
        numbers = [[f"{x:.7g}" for x in table[name].to_numpy()] for name in predictions]
        writer.writerows(zip(*columns, *numbers, strict=True))


def _texts(name: str, column: pa.ChunkedArray) -> list[str]:
    """The values of a column as text; lists as CSV files have them.

    Raises:
        UserError: the column has a type that has no text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from twml_ops._arrow_columns import is_list

    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        if is_list(kind):
            lists = pc.cast(column, pa.list_(pa.string())).to_pylist()
            return ["|".join(text or "" for text in items or ()) for items in lists]
        texts = pc.cast(column, pa.string()).to_pylist()
    except pa.ArrowException as e:
        raise UserError(
            f"--keep: the column {name} of type {kind} cannot be text in CSV: {e}"
        ) from e
    return ["" if text is None else text for text in texts]


def _write_parquet(path: Path, tables: Iterator[pa.Table]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    waiting = [next(tables)]
    with parquet.ParquetWriter(path, waiting[0].schema) as writer:
        for table in tables:
            if sum(map(len, waiting)) >= _GROUP_ROWS:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
            waiting.append(table)
        writer.write_table(pa.concat_tables(waiting))
