"""Makes a schema from what the user says about columns and, for the others, from how they look."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from twml_ops.data.errors import DataError, DataWarning, listed, quote, some
from twml_ops.data.infer import Finding
from twml_ops.data.names import NO_TIME, time_rank
from twml_ops.data.schema import DEFAULT_LABELS, SPARSE_IDS, TIME_PARTS, Schema


@dataclass(frozen=True)
class ColumnUses:
    """The uses of columns that the user gives. The uses of all other columns are guessed.

    Attributes:
        labels: names of the label columns; (): `label`.
        positive_label: the value of the label column for which the label is 1, and 0 for all
            others; None: it has numbers, bools, yes or no.
        time: the column with the time of an example, or None: one that looks like it, if any.
        weight: the column of sample weights, or None.
        group: the column that examples of one user or request share, or None. It is a feature, too,
            unless it is one of `drop`.
        categorical: columns of categories.
        numeric: columns of numbers.
        drop: columns that are not used.
        time_features: categories to make from times: a part of `TIME_PARTS`, such as `hour`, of the
            time of the examples, or `COLUMN.hour` of another column.
    """

    labels: tuple[str, ...] = ()
    time: str | None = None
    weight: str | None = None
    group: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    time_features: tuple[str, ...] = ()
    positive_label: str | None = None


NO_USES = ColumnUses()
BY_OPTION = "dropped by an option"
_MAX_MISSING = 0.5  # times of fewer rows, say of the positives only, order no examples


def schema_of(
    findings: Mapping[str, Finding], uses: ColumnUses, path: str
) -> tuple[Schema, dict[str, Finding]]:
    """Makes a schema, and says what each column is in it. With `ids`, `sparse_dim` is -1 (unknown).

    Args:
        findings: column → what it looks like.
        uses: what the user says.
        path: of the file, for messages.

    Raises:
        DataError: a column is not there or has two uses, there is no label, or no feature.
    """
    labels = uses.labels or DEFAULT_LABELS
    found = dict(findings)
    _check_uses(found, uses, path)
    for label in labels:
        if label not in found:
            raise DataError(f"{path}: there is no column `{label}`{_label_hint(found)}")
        if found[label].kind in ("bag", "sparse") or found[label].why.startswith("type "):
            raise DataError(f"{path}: the label `{label}` must be 0 or 1: it is {found[label].why}")
    said = {"categorical": uses.categorical, "continuous": uses.numeric, "dropped": uses.drop}
    for kind, names in said.items():
        for name in names:
            found[name] = _chosen(found[name], kind)
    if uses.group is not None and uses.group not in uses.drop:
        found[uses.group] = _chosen(found[uses.group], "categorical")
    if uses.positive_label is not None and len(labels) != 1:
        raise DataError(
            f"{path}: positive_label must be the value of one label column, got "
            f"{uses.positive_label!r} for the labels {', '.join(labels)}"
        )
    others = [(uses.weight, "weight"), (uses.time, "time"), *((n, "label") for n in labels)]
    for column, use in others:
        if column is not None:
            found[column] = _chosen(found[column], use, uses.positive_label)
    time = uses.time or _choose_time(found)
    features = _time_features(found, uses, time, path)
    of_times = {column for column, _ in features.values()}
    for column in of_times - {time}:
        found[column] = _chosen(found[column], "time")
    if time is not None and found[time].missing:
        why = f"{found[time].why}; examples without one are trained on, never held out"
        found[time] = found[time]._replace(why=why, sure=False)
    for name, finding in found.items():
        if finding.kind == "time" and name not in (time, *of_times):
            why = f"{finding.why}, but not the time of the examples"
            sure = time is not None or finding.distinct <= 1
            if not sure:
                rare = finding.missing > _MAX_MISSING
                why += ", as most are missing" if rare else ", by its name"
            by_type = finding.by_type and sure
            found[name] = finding._replace(
                kind="dropped", why=why, sure=sure, by_type=by_type, is_time=True
            )

    def named(*kinds: str) -> tuple[str, ...]:
        return tuple(name for name, finding in found.items() if finding.kind in kinds)

    categorical = named("categorical", "bag")
    has_sparse = SPARSE_IDS in named("sparse")
    if not (named("continuous") or categorical or has_sparse or features):
        left_out = [f"{n} ({f.why})" for n, f in found.items() if f.kind == "dropped"]
        also = f"; left out: {some(left_out)}" if left_out else ""
        besides = ", ".join(f"`{n}`" for n in labels)
        raise DataError(f"{path}: no feature columns besides {besides}{also}")
    separators = {n: s for n in named("bag") if (s := found[n].separator) is not None}
    schema = Schema(
        named("continuous"),
        (*categorical, *features),
        -1 if has_sparse else 0,
        f"the label is {1 if uses.positive_label is None else uses.positive_label}",
        named("bag"),
        separators=separators,
        labels=tuple(labels),
        weight=uses.weight,
        time=time,
        group=uses.group,
        typed=tuple(n for n in categorical if found[n].typed),
        times={column: found[column].unit or "" for column in found if column in of_times},
        day_first=time is not None and found[time].day_first,
        positive_label=uses.positive_label,
    )
    return schema, found


def _time_features(
    found: Mapping[str, Finding], uses: ColumnUses, time: str | None, path: str
) -> dict[str, tuple[str, str]]:
    """Feature → its column of times and its part, of `ColumnUses.time_features`."""
    features: dict[str, tuple[str, str]] = {}
    for name in uses.time_features:
        column, _, part = name.rpartition(".")
        if not column and part in TIME_PARTS:
            if time is None:
                raise DataError(
                    f"{path}: time_features: there is no time of the examples, got {name}; name "
                    f"its column: `--time NAME`, or `--time-features NAME.{name}`"
                )
            column = time
        elif part not in TIME_PARTS or column not in found:
            raise DataError(
                f"{path}: time_features must be {', '.join(TIME_PARTS)}, or one of them behind the "
                f"name of a column, as `NAME.hour`, got {name!r}; the columns are "
                f"{listed([*found])}"
            )
        made = f"{column}.{part}"
        if made in found:
            raise DataError(f"{path}: time_features: {made} is a column already")
        if found[column].day_first:
            raise DataError(
                f"{path}: time_features must be of dates whose order is the same everywhere, got "
                f"column {column}, in which the day is first, as in `31/1/2024`: write the month "
                "first, or the year, as in `2024-01-31`"
            )
        features[made] = column, part
    _check_times(uses, {column for column, _ in features.values()}, path)
    return features


def _check_times(uses: ColumnUses, columns: Iterable[str], path: str) -> None:
    """Checks that a column with time features has no other use than the time of the examples."""
    others = {
        "label": uses.labels or DEFAULT_LABELS,
        "weight": (uses.weight,),
        "group": (uses.group,),
        "categorical": uses.categorical,
        "numeric": uses.numeric,
        "drop": uses.drop,
    }
    for column in columns:
        for option, names in others.items():
            if column in names:
                raise DataError(
                    f"{path}: column {column} must have one use, got {option} and time_features"
                )


def _check_uses(found: Mapping[str, Finding], uses: ColumnUses, path: str) -> None:
    """Checks that each column that the user names exists and has one use."""
    options = {
        "label": uses.labels,
        "time": (uses.time,),
        "weight": (uses.weight,),
        "categorical": uses.categorical,
        "numeric": uses.numeric,
        "drop": uses.drop,
    }
    used: dict[str, str] = {}
    for option, names in {**options, "group": (uses.group,)}.items():
        for name in names:
            if name is not None and name not in found:
                hint = _label_hint(found) if option == "label" else f"; there are {[*found]}"
                raise DataError(f"{path}: {option}: there is no column `{name}`{hint}")
    for option, names in options.items():
        for name in names:
            if name is not None and used.setdefault(name, option) != option:
                raise DataError(
                    f"{path}: column {name} must have one use, got {used[name]} and {option}"
                )


def _label_hint(found: Mapping[str, Finding]) -> str:
    """The part of an error message that names the columns that could be the label."""
    two = [
        n for n, f in found.items() if f.distinct == 2 and f.kind in ("continuous", "categorical")
    ]
    text = listed(two) if two else f"none; the columns are {listed([*found])}"
    return f"; name the label: `--label NAME`. Columns with two values: {text}"


def _chosen(finding: Finding, kind: str, positive_label: str | None = None) -> Finding:
    """What a column is about which the user has said something."""
    why = {"label": "the label", "dropped": BY_OPTION}.get(kind, "by an option")
    if kind == "label" and positive_label is not None:
        why += f", 1 for {quote(positive_label)}"
        if finding.distinct == 1:
            return finding._replace(kind=kind, why=f"{why}; it has one value", sure=False)
    elif kind == "label" and finding.distinct not in (0, 2):
        why += f", which must have two values, not {finding.distinct:,}"
        return finding._replace(kind=kind, why=why, sure=False, by_type=True)
    if kind == "label" and finding.missing:
        why += ", which no row may lack"
        return finding._replace(kind=kind, why=why, sure=False, by_type=True)
    if kind == "time" and finding.kind == "dropped" and not finding.sure:
        return finding._replace(kind=kind, why=f"{why}: {finding.why}")
    if kind == "categorical" and finding.kind == "bag" and finding.separator is None:
        kind = "bag"  # a list stays one
    return finding._replace(kind=kind, why=why, sure=True, by_type=True)


def _choose_time(found: Mapping[str, Finding]) -> str | None:
    """The column of times that is the time of the examples."""
    times = [
        n
        for n, f in found.items()
        if f.kind == "time"
        and f.distinct > 1
        and time_rank(n) < NO_TIME
        and f.missing <= _MAX_MISSING
    ]

    def rank(name: str) -> tuple[int, bool, int]:
        return time_rank(name), not found[name].in_order, -found[name].distinct

    return min(times, key=rank, default=None)


_warns: ContextVar[bool] = ContextVar("warns", default=True)


@contextmanager
def without_warnings() -> Iterator[None]:
    """In its block `warn` says nothing in this thread; the caller shows the findings otherwise.

    `warnings.catch_warnings` would change the filters of all threads, and two threads that leave it
    in another order than they entered it would change them for ever.
    """
    token = _warns.set(False)
    try:
        yield
    finally:
        _warns.reset(token)


def warn(source: str, findings: Mapping[str, Finding]) -> None:
    """Warns of what was guessed from the names and values of columns.

    Args:
        source: its name.
        findings: column → what it is.
    """
    guessed = {n: f for n, f in findings.items() if not f.by_type and f.kind != "dropped"}
    dropped = {n: f for n, f in findings.items() if f.kind == "dropped" and not f.by_type}
    parts = [f"{n} is {_KINDS.get(f.kind, f.kind)} ({f.why})" for n, f in guessed.items()]
    parts += [f"{n} is left out ({f.why})" for n, f in dropped.items()]
    if parts and _warns.get():
        lines = [_other_line(n, f) for n, f in {**guessed, **dropped}.items()]
        warnings.warn(
            f"{source}: guessed from names and values: {'; '.join(parts)}. `twml-ops schema` "
            f"writes a file for `train --schema` in which another kind is the line "
            f"{some(lines)}",
            DataWarning,
            stacklevel=2,
        )


_KINDS = {
    "continuous": "a number",
    "categorical": "a category",
    "bag": "a bag of categories",
    "time": "the time",
}


def _other_line(name: str, finding: Finding) -> str:
    """The line of a schema file that makes a column something else."""
    if finding.is_time:
        unit = f", unit: {finding.unit}" if finding.unit else ""
        return f"`- {{kind: time, name: {name}, features: [hour]{unit}}}`"
    other = "continuous" if finding.kind == "categorical" else "categorical"
    return f"`- {{kind: {other}, name: {name}}}`"
