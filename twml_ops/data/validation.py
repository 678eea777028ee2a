"""A part of the training data for validation, on which choices are made.

The validation data should differ from the rest as future data differ from the training data. A
source may define the division itself, as it divides training and evaluation data (`flights`: the
end of every month). Otherwise the latest examples are taken if the schema has a time or the source
is in order of time, and random examples if not.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from twml_ops._category_hash import MISSING
from twml_ops.data.block import Array, Block
from twml_ops.data.errors import DataError
from twml_ops.data.source import CACHE_BYTES, Source
from twml_ops.data.subset import Keep, Place, Subset, is_drawn, random_rows

Method = Literal["auto", "time", "order", "random", "group"]
METHODS: tuple[Method, ...] = ("auto", "time", "order", "random", "group")
_SAMPLE_SIZE = 1 << 20


class TrainingParts(NamedTuple):
    """Training data in two parts.

    Attributes:
        fit: the examples to fit a model on.
        validation: the other examples. Its name describes them.
    """

    fit: Source
    validation: Source


def split_for_validation(
    source: Source, method: Method = "auto", share: float = 0.1, seed: int = 0
) -> TrainingParts:
    """Takes a part of training data away for validation.

    The examples are not copied: each part is a view of the source. A source whose parsed form is
    small enough to be kept in memory is read once.

    Args:
        source: the training data.
        method: "time": the latest examples by the column `schema.time`; those without a time are
            not among them. "order": the last examples in file order. "random": random examples.
            "group": all examples of random groups, the values of the column `schema.group`; an
            example without a group is a group of its own. "auto": as the source divides itself if
            it does; else "time" if the schema has a time, "order" if the source is in order of
            time, else "random".
        share: share of the examples that is taken, approximately. A source that divides itself
            does not use it.
        seed: the seed of the random choice. It depends on nothing else: the same examples are taken
            by every process and in every run.

    Returns:
        The two parts.

    Raises:
        ValueError: `method` is unknown, the schema lacks the column that it needs, `share` is not
            between 0 and 1, or a part would be empty.
        FileNotFoundError: the data is not there.
        DataError: the data cannot be read.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    schema = source.schema
    if method == "auto":
        own = source.own_validation()
        if own is not None:
            return TrainingParts(*own)
        method = "time" if schema.time else "order" if source.in_order_of_time else "random"
    for needed, column in (("time", schema.time), ("group", schema.group)):
        if method == needed and column is None:
            raise ValueError(f"{source.name}: the schema has no {needed}, so no split by {needed}")
    _read_into_memory(source)
    if method == "order":
        return TrainingParts(*Source.split(source, share))
    if method == "time":
        start = _latest(source, share)
        keep: Keep = lambda _, block: block.columns["time"] >= start  # noqa: E731  NaN is not
        name = f"{source.name} ({schema.time} from {start:.10g} on)"
    else:
        keep = _random_groups(share, seed) if method == "group" else random_rows(share, seed)
        what = f"of the values of {schema.group}" if method == "group" else "of the examples"
        name = f"{source.name} (a random {share:.3g} {what})"
    validation = Subset(source, name, keep)
    count = sum(map(len, validation.blocks()))  # which are kept, if they fit, to be read often
    total = source.num_examples()
    if count in (0, total):
        raise ValueError(
            f"{source.name}: {total} examples cannot be divided by {method} with the share "
            f"{share:g}: a part would be empty"
        )
    fit = Subset(source, f"{source.name} (the rest)", lambda place, block: ~keep(place, block))
    fit._num_examples = total - count  # without a pass
    return TrainingParts(fit, validation)


def _read_into_memory(source: Source) -> None:
    """Reads a source, so that its views need not parse it again; stops if it is too large."""
    size = 0
    for block in source.blocks():
        size += block.nbytes
        if size > CACHE_BYTES:
            return


def _random_groups(share: float, seed: int) -> Keep:
    rows = random_rows(share, seed)

    def keep(place: Place, block: Block) -> Array:
        groups = block.columns["group"]
        drawn = is_drawn(groups, share, seed)
        return np.where(groups == MISSING, rows(place, block), drawn)

    return keep


def _latest(source: Source, share: float) -> float:
    """The time from which on about `share` of the examples are.

    It is computed from at most 2^20 times: every k-th, with k a power of two. All examples of one
    time are on the same side.

    Raises:
        DataError: there are not two different times.
    """
    step, position = 1, 0
    sample: list[Array] = []
    for block in source.blocks():
        times = block.columns["time"]
        sample.append(times[(-position) % step :: step])
        position += len(times)
        if sum(map(len, sample)) > _SAMPLE_SIZE:
            sample, step = [np.concatenate(sample)[::2]], 2 * step
    every = np.concatenate(sample) if sample else np.zeros(0)
    times = np.sort(every[~np.isnan(every)])
    different, first = np.unique(times, return_index=True)
    if len(different) < 2:
        raise DataError(f"{source.name}: {source.schema.time} has no two different times")
    tails = len(times) - first[1:]  # how many are at each time or later
    best = int(np.abs(tails - share * len(every)).argmin())
    return float(different[1 + best])
