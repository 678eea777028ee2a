"""Which categories a run has seen, and the warning where data has nearly none of them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from twml_ops._known_categories import Count, KnownCategories
from twml_ops.data import Block, DataWarning, Schema, Source
from twml_ops.data.block import Array, Categories

MOST_ROWS = 1 << 22  # the last ones of the training data, which are parsed once more at most


def learn(source: Source, before: KnownCategories | None = None) -> KnownCategories:
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
        _warn(counts, source.name)
    return known


@contextlib.contextmanager
def checked(run: Path, source: Source) -> Iterator[None]:
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
    _warn(counts, source.name)


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


def _warn(counts: Mapping[str, Count], source: str) -> None:
    for name, count in counts.items():
        if count.suspicious:
            share = count.unknown / count.examined
            warnings.warn(
                f"{source}: {share:.0%} of the categories of {name} were not in the training data, "
                "so that it says nothing to the model; are they written as in the training data?",
                DataWarning,
                stacklevel=3,
            )
