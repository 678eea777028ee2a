"""A part of the training data for validation, on which choices are made.

The validation data should differ from the rest as future data differ from the training data. A
source may define the division itself, as it divides training and evaluation data (`flights`: the
end of every month). Otherwise the latest examples are taken if the schema has a time or the source
is in order of time, and random examples if not.
"""

from __future__ import annotations

import datetime
from typing import Literal, NamedTuple

import numpy as np

from twml_ops._category_hash import MISSING
from twml_ops.data.block import Array, Block
from twml_ops.data.errors import DataError
from twml_ops.data.source import CACHE_BYTES, RowRange, Source
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
    """Divides training data into a part to train on and validation data.

    The examples are not copied: each part is a view of the source. A source whose parsed form is
    small enough to be kept in memory is read once.

    Args:
        source: the training data.
        method: "time": the latest examples by the column `schema.time`; those without a time are
            not among them. "order": the last examples in file order. "random": random examples.
            "group": all examples of random groups, the values of the column `schema.group`; an
            example without a group is a group of its own. "auto": as the source divides itself if
            it does; else "time" if the schema has a time ("order" if all are the same), "order" if
            the source is in order of time, else "random".
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
    schema, chosen = source.schema, method
    if method == "auto":
        own = source.own_validation()
        if own is not None:
            return TrainingParts(*own)
        method = "time" if schema.time else "order" if source.in_order_of_time else "random"
    for needed, column in (("time", schema.time), ("group", schema.group)):
        if method == needed and column is None:
            raise ValueError(f"{source.name}: the schema has no {needed}, so no split by {needed}")
    _read_into_memory(source)
    if chosen == "auto" and method == "time" and _latest_or_none(source, share) is None:
        method = "order"
    if method == "order":
        return TrainingParts(*Source.split(source, share))
    if method == "time":
        start = _latest(source, share)
        keep = _is_from(start)
        name = f"{source.name} ({schema.time} from {time_text(start)} on)"
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


def split_in_time(source: Source, share: float = 0.2) -> tuple[Source, Source]:
    """Divides the examples into a training and an evaluation part, by `schema.time`.

    Args:
        source: the examples, whose schema has a time.
        share: about the share of the examples, the latest ones, that the evaluation part gets. All
            examples of one time are in the same part, and those without a time in the first.

    Returns:
        (train, eval). If the source is in order of time they are ranges of rows. Then they may
        divide the examples of a time where there are too few different ones.

    Raises:
        ValueError: the schema has no time, or `share` is not between 0 and 1.
        FileNotFoundError: the data is not there.
        DataError: the data cannot be read, or there are too few different times.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    column = source.schema.time
    if column is None:
        raise ValueError(f"{source.name}: the schema has no time, so no split by time")
    start = _latest(source, share)
    total, late, last, in_order = 0, 0, -np.inf, True
    for block in source.blocks():
        times = block.columns["time"]
        in_order &= bool((np.diff(times, prepend=last) >= 0).all())  # NaN is not in order
        late += int((times >= start).sum())
        total, last = total + len(times), times[-1] if len(times) else last
    is_near = share / 3 <= late / total <= min(2 * share, (1 + share) / 2)
    if in_order:
        if not is_near:  # too few different times: some are divided
            return source.split(share)
        return RowRange(source, 0, total - late), RowRange(source, total - late, total)
    if not is_near:
        raise DataError(
            f"{source.name}: {column} has too few different times to hold out the latest "
            f"{share:.0%}: the nearest are {late / total:.1%} of the examples; give evaluation "
            "data (--eval), or another time"
        )
    parts = (
        Subset(source, f"{source.name} ({what})", keep)
        for what, keep in (
            (f"{column} before {time_text(start)}", _is_not_from(start)),
            (f"{column} from {time_text(start)} on", _is_from(start)),
        )
    )
    train, held_out = parts
    return train, held_out


def _is_from(start: float) -> Keep:
    return lambda _, block: block.columns["time"] >= start  # NaN is not


def _is_not_from(start: float) -> Keep:
    return lambda _, block: ~(block.columns["time"] >= start)


def time_text(time: float) -> str:
    """A time as a date if it can be seconds since 1970, otherwise as the number that it is."""
    if 10**8 <= time < 10**10:
        date = datetime.datetime.fromtimestamp(time, datetime.timezone.utc)
        return date.strftime("%Y-%m-%d %H:%M:%S")
    return f"{time:.10g}"


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
    start = _latest_or_none(source, share)
    if start is None:
        raise DataError(f"{source.name}: {source.schema.time} has no two different times")
    return start


def _latest_or_none(source: Source, share: float) -> float | None:
    """The same; None if there are not two different times."""
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
        return None
    tails = len(times) - first[1:]  # how many are at each time or later
    best = int(np.abs(tails - share * len(every)).argmin())
    return float(different[1 + best])
