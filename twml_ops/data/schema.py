"""What the features of a source are: their names, kinds and order."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from twml_ops._category_hash import VERSION
from twml_ops.data.errors import shown

Kind = Literal["continuous", "categorical", "bag", "sparse"]
SPARSE_IDS, SPARSE_VALUES = "ids", "values"  # the columns of raw sparse features
TIME_PARTS = ("hour", "weekday", "month", "hour_of_week")
"""What a feature of a column of times can be: see cc/core/time_text.h."""
TIME_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds", "YYYYMMDD")
"""What the integers of a column of times can be, since 1970 but for the last one."""


class Feature(NamedTuple):
    """One feature of a schema.

    Attributes:
        name: the name of the column.
        kind: "continuous": a number. "categorical": one category. "bag": any number of
            categories. "sparse": raw ids with values, in the columns `ids` and `values`.
        weights: for a bag, the column with a weight for each category, or None.
        dim: for a sparse feature, the size of its id space.
    """

    name: str
    kind: Kind
    weights: str | None = None
    dim: int | None = None


DEFAULT_LABELS = ("label",)


@dataclass(frozen=True)
class Schema:
    """The features of a source.

    Attributes:
        continuous: names; the id of a continuous feature is its position here.
        categorical: names of all columns whose tokens are hashed to category ids, bags included.
        sparse_dim: 0, or the size of the id space of raw `id:value` features.
        label: what a label of 1 means, in words.
        bags: columns of `categorical` that hold any number of tokens a row.
        bag_weights: bag → the column with a weight for each of its tokens.
        labels: names of the label columns. None: the examples have no labels, and get 0.
        positive_label: the value of the label column for which the label is 1; it is 0 for all
            other values. None: the column has numbers, bools, yes or no.
        weight: the column of sample weights, or None.
        time: the column with the time of an example, or None.
        group: the column that examples of one user or request share, or None.
        hash_version: the version of the hash of categories, `twml_ops.data.hash_tokens`: 2.
        typed: columns of `categorical` whose categories are integers or bools: `3.0` is read as 3,
            and `True` as true, so that files of any format have the same ids. None: the reader
            finds out which.
        separators: bag → what is between its tokens where they are one text: a character, or `[]`
            for lists in brackets. Bags of CSV files, and of Parquet columns of text, have `|` if it
            is not given. Schemas that differ in this, `typed` and `day_first` alone are equal.
        times: column of times of which there are features → the unit of its integers, one of
            `TIME_UNITS`, or "" if integers are no times. The features are names of `categorical`,
            such as `column.hour`, with one of `TIME_PARTS` behind the name of the column.
        day_first: whether `3/4/2024` in the column `time` is a day of April, not of March.

    Raises:
        ValueError: a name twice, a column with the name of the row splits of a bag, a bag that is
            no categorical column, a column of `times` with an unknown unit or without a feature,
            another hash version, or a `positive_label` for another number of label columns than
            one.
    """

    continuous: tuple[str, ...]
    categorical: tuple[str, ...]
    sparse_dim: int
    label: str
    bags: tuple[str, ...] = ()
    bag_weights: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = DEFAULT_LABELS
    weight: str | None = None
    time: str | None = None
    group: str | None = None
    hash_version: int = VERSION
    typed: tuple[str, ...] | None = field(default=None, compare=False)
    separators: Mapping[str, str] = field(default_factory=dict, compare=False)
    times: Mapping[str, str] = field(default_factory=dict)
    day_first: bool = field(default=False, compare=False)
    positive_label: str | None = None

    def __post_init__(self) -> None:
        if self.day_first and self.time in self.times:
            raise ValueError(
                f"day_first: the features of column {self.time} would have the month first; write "
                "its dates as in `2024-01-31`, or make no features of it"
            )
        if self.positive_label is not None and len(self.labels) != 1:
            raise ValueError(
                f"positive_label is the value of one label column, got {self.positive_label!r} and "
                f"the labels {list(self.labels)}"
            )
        if self.hash_version != VERSION:
            raise ValueError(
                f"hash_version must be {VERSION}, got {shown(self.hash_version)}: this version of "
                "the package cannot compute these ids of categories; train the model anew"
            )
        names = [*self.continuous, *self.categorical, *self.labels, *self.bag_weights.values()]
        names += self.times
        twice = sorted(n for n, count in Counter(names).items() if count > 1)
        if twice:
            raise ValueError(f"columns must have one use each in a schema, got {twice} twice")
        splits = sorted({f"{bag}_row_splits" for bag in self.bags} & {*names})
        if splits:
            raise ValueError(
                f"columns must not be called {splits}, as the row splits of bags are in requests: "
                "rename or drop them"
            )
        for what, unknown in (
            ("bags", set(self.bags) - set(self.categorical)),
            ("bag_weights", set(self.bag_weights) - set(self.bags)),
            ("separators", set(self.separators) - set(self.bags)),
        ):
            if unknown:
                raise ValueError(f"{what} must name bags, got {sorted(unknown)}")
        of_times = {made[0] for name in self.fields if (made := self.time_feature(name))}
        for name, unit in self.times.items():
            if unit and unit not in TIME_UNITS:
                raise ValueError(
                    f"the unit of times in {name} must be one of {', '.join(TIME_UNITS)}, got "
                    f"{unit!r}"
                )
            if name not in of_times:
                raise ValueError(f"times must be columns of which there is a feature, got {name}")

    def time_feature(self, name: str) -> tuple[str, str] | None:
        """Says whether a categorical feature is made of a time.

        Args:
            name: the name of the feature.

        Returns:
            The column of `times` and one of `TIME_PARTS`; None: it is a column itself.
        """
        column, _, part = name.rpartition(".")
        return (column, part) if column in self.times and part in TIME_PARTS else None

    @functools.cached_property
    def categorical_columns(self) -> tuple[str, ...]:
        """Names of `categorical` that are columns of the data, not features made of a time."""
        return tuple(name for name in self.categorical if self.time_feature(name) is None)

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the categorical columns with one token a row; a field's id is its position."""
        bags = {*self.bags}
        return tuple(name for name in self.categorical if name not in bags)

    def bag_arrays(self, name: str) -> str:
        """The prefix of the names of a bag's arrays: `bag_tags_ids` for the column `tags`.

        Characters that TensorFlow, Keras and signatures do not take in names are their code points:
        the prefix of `my tags` is `bag_my_x20_tags`. TensorFlow does not distinguish `tags` and
        `Tags`, so that the second one gets a number.

        Args:
            name: the name of the bag.

        Returns:
            The prefix, which no other bag of the schema has.
        """
        return _bag_arrays(self.bags)[name]

    def is_typed(self, name: str) -> bool:
        """Says how the categories of a column are spelled.

        Args:
            name: the name of the column.

        Returns:
            Whether it is one of `typed`.
        """
        return name in self._typed_names

    @functools.cached_property
    def _typed_names(self) -> frozenset[str]:
        return frozenset(self.typed or ())

    def without_labels(self) -> Schema:
        """The features alone, of examples that are only predicted.

        Returns:
            The schema without labels, sample weights, times and groups.
        """
        return replace(self, labels=(), positive_label=None, weight=None, time=None, group=None)

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the schema uses, each once."""
        names = [*self.labels, *self.continuous, *self.categorical_columns, *self.times]
        names += self.bag_weights.values()
        names += [n for n in (self.weight, self.time, self.group) if n is not None]
        names += [SPARSE_IDS, SPARSE_VALUES] if self.sparse_dim else []
        return tuple(dict.fromkeys(names))

    @property
    def groups(self) -> dict[str, bool]:
        """The feature groups there are, and whether their entries have values."""
        sizes = {
            "continuous": (len(self.continuous), True),
            "categorical": (len(self.categorical), False),
            "sparse": (self.sparse_dim, True),
        }
        return {name: has_values for name, (size, has_values) in sizes.items() if size}

    @functools.cached_property
    def features(self) -> tuple[Feature, ...]:
        """The features, continuous ones first, then categories, then raw sparse ids."""
        found = [Feature(name, "continuous") for name in self.continuous]
        for name in self.categorical:
            kind: Kind = "bag" if name in self.bags else "categorical"
            found.append(Feature(name, kind, weights=self.bag_weights.get(name)))
        if self.sparse_dim:
            weights = SPARSE_VALUES
            found.append(Feature(SPARSE_IDS, "sparse", weights=weights, dim=self.sparse_dim))
        return tuple(found)

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> Schema:
        """Makes the schema whose `dataclasses.asdict` a run has saved as JSON.

        Args:
            saved: the saved schema of the run.

        Returns:
            The schema.

        Raises:
            ValueError: it has ids of categories that this version of the package cannot compute,
                as a schema without a hash version.
        """
        arguments: dict[str, Any] = {
            "hash_version": 1,  # of runs that were written before there was a version
            "typed": (),  # of runs that were written before there were typed categories
            **{k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()},
        }
        return Schema(**arguments)


@functools.lru_cache(maxsize=1 << 8)
def _bag_arrays(bags: tuple[str, ...]) -> dict[str, str]:
    """The prefixes of `Schema.bag_arrays`, by bag."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for bag in bags:
        coded = re.sub(r"[^A-Za-z0-9_.]", lambda part: f"_x{ord(part[0]):x}_", bag)
        names = itertools.chain([coded], (f"{coded}_x_{n}" for n in itertools.count(1)))
        name = next(name for name in names if name.lower() not in taken)
        taken.add(name.lower())
        found[bag] = f"bag_{name}"
    return found
