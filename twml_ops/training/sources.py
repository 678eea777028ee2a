"""The data of a training: training and evaluation data, and the categories that it has seen."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from twml_ops._known_categories import Count, KnownCategories
from twml_ops.data import Block, ColumnUses, DataWarning, Schema, Source, open_source, split_in_time
from twml_ops.data.block import Array, Categories

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
    return split(train, holdout)


def split(data: Source, holdout: Holdout) -> tuple[Source, Source]:
    """Holds evaluation data out of data: (training data, evaluation data)."""
    return split_in_time(data) if holdout == "time" else data.split()


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


MOST_ROWS = 1 << 22  # the last ones of the training data, which are parsed once more at most


def learn_categories(source: Source, before: KnownCategories | None = None) -> KnownCategories:
    """The categories of training data.

    Args:
        source: the data.
        before: the categories that the model has seen earlier; the new ones are added to them.

    Returns:
        The categories of both.
    """
    schema = source.schema
    known = before or KnownCategories(schema.categorical)
    if schema.categorical:
        counts: dict[str, Count] = {}
        for block in source.blocks(max(0, source.num_examples() - MOST_ROWS)):
            if before is not None:
                _count(known, block, schema, counts)
            for name, ids in _categories(block, schema).items():
                known.add(name, ids)
        _warn_of_unknown(counts, source.name)
    return known


@contextlib.contextmanager
def checked_categories(run: Path, source: Source) -> Iterator[None]:
    """In its block, what datasets of a source read is compared with what a run has seen.

    At its end a warning names the fields of which nearly all categories are unknown.

    Args:
        run: folder of the run.
        source: data for its model.

    Yields:
        Nothing.

    Raises:
        ValueError: the file of the run is damaged.
    """
    known, counts = KnownCategories.load(run), dict[str, Count]()
    if known is not None:
        schema = source.schema
        source.watch(lambda block: _count(known, block, schema, counts))
    yield
    _warn_of_unknown(counts, source.name)


def _count(known: KnownCategories, block: Block, schema: Schema, counts: dict[str, Count]) -> None:
    for name, ids in _categories(block, schema).items():
        if name in known.fields:
            counts[name] = counts.get(name, Count()) + known.count(name, ids)


def _categories(block: Block, schema: Schema) -> dict[str, Array]:
    """The ids of the categories of each column, -1 where a row has none."""
    group = block.groups.get("categorical")
    if not isinstance(group, Categories) or group.table.shape[1] != len(schema.fields):
        return {}  # as runs of older versions have them
    found = dict(zip(schema.fields, group.table.T, strict=True))
    bags = {name: group.bags[schema.categorical.index(name)].ids for name in schema.bags}
    return {**found, **bags}


def _warn_of_unknown(counts: Mapping[str, Count], source: str) -> None:
    for name, count in counts.items():
        if count.suspicious:
            share = count.unknown / count.examined
            warnings.warn(
                f"{source}: {share:.0%} of the categories of {name} were not in the training data, "
                "so that it says nothing to the model; are they written as in the training data?",
                DataWarning,
                stacklevel=3,
            )
