"""The sources of a run: the training data and the evaluation data."""

from __future__ import annotations

from twml_ops.data import Schema, Source, open_source

LARGE_BATCH_SIZE = 8192  # of passes over data that do not train


def open_pair(
    data: str,
    evaluation: str | None,
    like: Schema | None = None,
    schema_file: str | None = None,
) -> tuple[Source, Source]:
    """Opens the training data and the evaluation data.

    Args:
        data: SOURCE of the training data.
        evaluation: SOURCE of the evaluation data; None: a part of `data` is held out for it.
        like: schema of an existing model, which the data must match.
        schema_file: a file with the uses of the columns, as `twml-ops schema` writes it; None: by
            their types. Not together with `like`.

    Returns:
        (training data, evaluation data).

    Raises:
        FileNotFoundError: a file does not exist.
        DataError: data or the schema cannot be read, or their features differ from the features of
            `like`.
    """
    train = open_source(data, like=like, schema=schema_file)
    if evaluation is None:
        return train.split()
    return train, open_source(evaluation, like=train.schema)


def parse_all(source: Source) -> None:
    """Parses a source that is read after a training only, so that errors in it come before that.

    Args:
        source: the evaluation data.

    Raises:
        DataError: a row cannot be read.
    """
    for _ in source.blocks():
        pass
