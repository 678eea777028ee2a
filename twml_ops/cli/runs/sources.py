"""The sources of a run: what is trained on, and what is held out."""

from __future__ import annotations

from twml_ops.data import Schema, Source, open_source


def open_pair(
    data: str, evaluation: str | None, like: Schema | None = None
) -> tuple[Source, Source]:
    """(train, eval): `evaluation` if there is one, else a part of `data` that is held out.

    Args:
        data: SOURCE of the training data.
        evaluation: SOURCE, or None.
        like: schema of the model, if there is one already.

    Raises:
        FileNotFoundError: a file is not there.
        DataError: data that cannot be read, or whose features differ.
    """
    train = open_source(data, like=like)
    if evaluation is None:
        return train.split()
    return train, open_source(evaluation, like=train.schema)
