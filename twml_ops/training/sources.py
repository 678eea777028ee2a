"""The data of a training: training and evaluation data, and the categories that it has seen."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from twml_ops._known_categories import Count, KnownCategories
from twml_ops.data import Block, ColumnUses, DataWarning, Schema, Source, open_source, split_in_time
from twml_ops.data.block import Array
from twml_ops.data.column_uses import without_warnings
from twml_ops.training.config import RunConfig

if TYPE_CHECKING:
    from twml_ops.training.drift import Statistics

LARGE_BATCH_SIZE = 8192  # of passes over data that do not train
Holdout = Literal["time", "order"]
"""How evaluation data are held out: the latest examples, or the last ones of the files."""


class OpenedData(NamedTuple):
    """The training data, the evaluation data, and how these are held out of data if not given."""

    train: Source
    eval: Source
    holdout: Holdout


def open_data(
    config: RunConfig, like: Schema | None = None, holdout: Holdout | None = None
) -> OpenedData:
    """Opens the data of a training, without TensorFlow unless they are TFRecord files.

    Args:
        config: of the training.
        like: the schema of the run that it continues; None: it continues none.
        holdout: as of `open_pair`.

    Raises:
        FileNotFoundError: a file does not exist.
        DataError: as `open_pair`.
    """
    uses = config.uses if like is None and config.schema_file is None else None
    data, eval = open_pair(config.data, config.eval, like, config.schema_file, uses, holdout)
    return OpenedData(data, eval, holdout or default_holdout(config.schema_file, data.schema))


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
    # With `uses` the caller prints the table of columns.
    with contextlib.nullcontext() if uses is None else without_warnings():
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


def parse_all(source: Source, on_block: Callable[[Block], object] = lambda block: None) -> None:
    """Parses a source that is read after a training only, so that errors in it come before that.

    Args:
        source: the evaluation data.
        on_block: called with the examples.

    Raises:
        DataError: a row cannot be read.
    """
    for block in source.blocks():
        on_block(block)


MOST_ROWS = 1 << 22  # the last ones of the training data, which are parsed once more at most


def learn_categories(
    source: Source,
    before: KnownCategories | None = None,
    on_block: Callable[[Block], object] = lambda block: None,
) -> KnownCategories:
    """The categories of training data.

    Args:
        source: the data.
        before: the categories that the model has seen earlier; the new ones are added to them.
        on_block: called with the examples.

    Returns:
        The categories of both.
    """
    from twml_ops.training.drift import categories_of, count_categories

    schema = source.schema
    known = before or KnownCategories(schema.categorical)
    counts: dict[str, Count] = {}
    for block in source.blocks(max(0, source.num_examples() - MOST_ROWS)):
        if before is not None:
            count_categories(known, block, schema, counts)
        for name, ids in categories_of(block, schema).items():
            known.add(name, ids)
        on_block(block)
    _warn_of_unknown(counts, source.name)
    return known


def learn_features(
    source: Source, before: KnownCategories | None = None, whole: Source | None = None
) -> tuple[KnownCategories | None, Statistics | None]:
    """What a run keeps of its training data: their categories, and histograms of features.

    Args:
        source: the data.
        before: the categories that the model has seen earlier.
        whole: the data with all negative examples, which the histograms are of; None: `source`.

    Returns:
        (categories, histograms); None if the data have none.
    """
    from twml_ops.training.drift import EvenSample, Statistics

    schema = source.schema
    if not schema.categorical and not schema.continuous:
        return None, None
    whole = whole or source
    rows = whole.num_examples()
    sample = EvenSample(min(rows, MOST_ROWS))
    if whole is source:
        known = learn_categories(source, before, sample.add)
    else:
        known = learn_categories(source, before)
        for some in whole.blocks(max(0, rows - MOST_ROWS)):
            sample.add(some)
    block = sample.block()
    statistics = None if block is None else Statistics.of(block, schema)
    return known if schema.categorical else None, statistics


def checked_features(run: Path, source: Source) -> contextlib.AbstractContextManager[None]:
    """In its block, what datasets of a source read is compared with what a run has seen.

    At its end warnings name the fields of which nearly all categories are unknown, and the features
    that are distributed otherwise than in the training.

    Args:
        run: folder of the run.
        source: data for its model.

    Returns:
        A context manager.

    Raises:
        ValueError: a file of the run is damaged.
    """
    from twml_ops.training.drift import Statistics

    return compared_features(KnownCategories.load(run), Statistics.load(run), source)


@contextlib.contextmanager
def compared_features(
    known: KnownCategories | None, statistics: Statistics | None, source: Source
) -> Iterator[None]:
    """In its block, what datasets of a source read is compared; see `checked_features`.

    Args:
        known: the categories that a run has seen; None: they are not compared.
        statistics: the histograms of its features; None: they are not compared.
        source: data for its model.

    Yields:
        Nothing.
    """
    from twml_ops.training.drift import count_categories, drift_warning

    unknown, counts, schema = dict[str, Count](), dict[str, Array](), source.schema
    if known is not None:
        source.watch(lambda block: count_categories(known, block, schema, unknown))
    if statistics is not None:
        source.watch(lambda block: statistics.count(block, schema, counts))
    yield
    usual = statistics.unknown if statistics else {}
    new = {name: count for name, count in unknown.items() if name not in usual}
    new |= {n: count for n, count in unknown.items() if n in usual and not usual[n].suspicious}
    named = _warn_of_unknown(new, source.name)
    if statistics is not None:
        differences = statistics.differences(counts, unknown)
        differences = {name: text for name, text in differences.items() if name not in named}
        if differences:
            warnings.warn(drift_warning(source.name, differences), DataWarning, stacklevel=3)


def _warn_of_unknown(counts: Mapping[str, Count], source: str) -> list[str]:
    """Warns of the columns of which nearly all categories are unknown; returns their names."""
    found = [name for name, count in counts.items() if count.suspicious]
    for name in found:
        share = counts[name].unknown / counts[name].examined
        warnings.warn(
            f"{source}: {share:.0%} of the categories of {name} were not in the training data, "
            "so the column is of no use to the model; are they spelled as in the training data?",
            DataWarning,
            stacklevel=3,
        )
    return found
