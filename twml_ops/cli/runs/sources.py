"""The sources of a run: the training data and the evaluation data."""

from __future__ import annotations

import warnings
from typing import Literal

from twml_ops.data import ColumnUses, DataWarning, Schema, Source, open_source, split_in_time

LARGE_BATCH_SIZE = 8192  # of passes over data that do not train


Holdout = Literal["time", "order"]
"""How evaluation data are held out: the latest examples, or the last ones of the files."""


def open_pair(
    data: str,
    evaluation: str | None,
    like: Schema | None = None,
    schema_file: str | None = None,
    uses: ColumnUses | None = None,
    holdout: Holdout | None = None,
) -> tuple[Source, Source]:
    """Opens the training data and the evaluation data.

    Args:
        data: SOURCE of the training data.
        evaluation: SOURCE of the evaluation data; None: a part of `data` is held out for it.
        like: schema of an existing model, which the data must match.
        schema_file: a file with the uses of the columns, as `twml-ops schema` writes it; None: as
            `uses` and the columns say. Not together with `like`.
        uses: what the user says of columns. Not together with `like` or `schema_file`.
        holdout: how the part is held out; None: see `default_holdout`.

    Returns:
        (training data, evaluation data).

    Raises:
        FileNotFoundError: a file does not exist.
        DataError: data or the schema cannot be read, or their features differ from the features of
            `like`.
    """
    with warnings.catch_warnings():
        if uses is not None:  # the caller prints the table of columns
            warnings.filterwarnings("ignore", ".*: guessed from names", DataWarning)
        train = open_source(data, like=like, schema=schema_file, uses=uses)
    if evaluation is not None:
        return train, open_source(evaluation, like=train.schema)
    if holdout is None:
        holdout = "order" if like is not None else default_holdout(schema_file, train.schema)
    return split_in_time(train) if holdout == "time" else train.split()


def default_holdout(schema_file: str | None, schema: Schema) -> Holdout:
    """How evaluation data are held out of data of a new run.

    Args:
        schema_file: file with the uses of the columns, whose order of examples counts; None: a
            time that was found or given as an option counts.
        schema: of the data.
    """
    return "time" if schema.time is not None and schema_file is None else "order"


def parse_all(source: Source) -> None:
    """Parses a source that is read after a training only, so that errors in it come before that.

    Args:
        source: the evaluation data.

    Raises:
        DataError: a row cannot be read.
    """
    for _ in source.blocks():
        pass
