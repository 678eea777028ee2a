"""Data from which nothing is learned: labels and features of one value, tiny sample weights."""

from __future__ import annotations

import numpy as np

from twml_ops.data import Block, Schema, Source, TrainingParts
from twml_ops.data.block import Array, Categories, Numbers, Rows
from twml_ops.data.errors import quote, some
from twml_ops.data.schema import SPARSE_IDS
from twml_ops.training.errors import UserError
from twml_ops.training.sources import MOST_ROWS

_FEW_ROWS = 100  # in which most columns have two values
_LEAST_MEAN_WEIGHT = 0.1


def warnings_of_one_value(source: Source, parts: TrainingParts | None = None) -> list[str]:
    """Sentences about labels and features with one value in the training data.

    The data are read until each label and each feature has had two values, which ordinary data have
    at their beginning. Features are looked at in the first `MOST_ROWS` examples.

    Args:
        source: the training data.
        parts: their parts, if the number of epochs is chosen by one of them.

    Returns:
        A sentence for each label without positives, or without negatives, that count, in the data
        or in a part; one that names the features with one value; one that names the features
        without any; and one about sample weights whose mean is far below 1.

    Raises:
        UserError: all sample weights of the data or of a part are 0.
        ValueError: data cannot be read.
    """
    features = _Features(source.schema)
    said = _labels(source, "the training data", "there is nothing to learn", features)
    if parts is not None and not said:
        fit, choose = "the training data without the validation data", "no number of epochs is best"
        said = _labels(parts.fit, fit, choose)
        said += _labels(parts.validation, "the validation data", "they do not test the others")
    return [*said, *features.sentences(f"the training data {source.name}")]


def _labels(source: Source, what: str, so: str, features: _Features | None = None) -> list[str]:
    """A sentence for each label that is the same in all examples that count.

    Args:
        source: the examples.
        what: they are.
        so: what follows.
        features: are given the examples, until all have had two values.
    """
    names = source.schema.labels
    found = np.zeros((2, len(names)), bool)
    any_weight = False
    for block in source.blocks():
        labels = block.labels.reshape(len(block), -1)
        weights = block.columns.get("weight")
        if weights is not None:
            labels = labels[weights > 0]
        any_weight = any_weight or len(labels) > 0
        found |= np.stack([(labels <= 0).any(axis=0), (labels > 0).any(axis=0)])
        if features is not None:
            features.add(block)
        if found.all() and (features is None or features.done):
            return []
    if not any_weight:
        others = "" if features else "; --validation gives other parts, --epochs needs none"
        raise UserError(f"{source.name}: all sample weights of {what} are 0{others}")
    value = source.schema.positive_label
    none = "," if value is None else f", none of which has the value {quote(value)},"
    return [
        f"The label {name} is {int(positives)} in all examples of {what} {source.name}"
        f"{',' if positives else none} so that {so}."
        for name, (negatives, positives) in zip(names, found.T, strict=True)
        if not (negatives and positives)
    ]


class _Columns:
    """The columns of a matrix that have had one value so far.

    Attributes:
        left: int64, their positions.
        first: the first row of the matrix; empty as long as there is none.
    """

    def __init__(self, width: int) -> None:
        self.left: Array = np.arange(width)
        self.first: Array = np.zeros(0)

    def add(self, table: Array) -> None:
        """The next rows."""
        if len(table) and not len(self.first):
            self.first = table[0].copy()
        for part in (table[:_FEW_ROWS], table[_FEW_ROWS:]):
            if len(part):
                columns, first = part[:, self.left], self.first[self.left]
                same = (columns == first) | ((columns != columns) & (first != first))
                self.left = self.left[same.all(axis=0)]


class _Features:
    """The features of a schema that have had one value so far, or none."""

    def __init__(self, schema: Schema) -> None:
        self._numbers, self._fields = schema.continuous, schema.fields
        self._of_numbers, self._of_fields = (
            _Columns(len(names)) for names in (self._numbers, self._fields)
        )
        self._bags = {name: schema.categorical.index(name) for name in schema.bags}
        # Whether a bag or the raw sparse features have had any entries.
        self._empty = {*schema.bags, *([SPARSE_IDS] if schema.sparse_dim else [])}
        self._rows = 0
        self._weight, self._weighted = 0.0, 0  # the sum and the number of weights but 0

    @property
    def done(self) -> bool:
        """Whether each has had two values and weights are not tiny, or enough examples are read."""
        left = len(self._of_numbers.left) + len(self._of_fields.left) + len(self._empty)
        tiny = 0 < self._mean_weight < _LEAST_MEAN_WEIGHT  # later ones may be larger
        return (left == 0 and not tiny) or self._rows >= MOST_ROWS

    @property
    def _mean_weight(self) -> float:
        """The mean of the weights but 0; 0 if there are none."""
        return self._weight / max(self._weighted, 1)

    def add(self, block: Block) -> None:
        """The next examples."""
        if self.done:
            return
        self._rows += len(block)
        weights = block.columns.get("weight")
        if weights is not None:
            self._weight += float(weights.sum(dtype=np.float64))
            self._weighted += int((weights > 0).sum())
        numbers, categories = (block.groups.get(n) for n in ("continuous", "categorical"))
        if isinstance(numbers, Numbers):
            self._of_numbers.add(numbers.table)
        if isinstance(categories, Categories):
            self._of_fields.add(categories.table)
        for name in [*self._empty]:
            rows = block.groups.get("sparse")
            if name in self._bags and isinstance(categories, Categories):
                rows = categories.bags[self._bags[name]]
            if isinstance(rows, Rows) and len(rows.ids):
                self._empty.discard(name)

    def sentences(self, data: str) -> list[str]:
        """What is to be said of them.

        Args:
            data: name of the data.
        """
        numbers, fields = (
            {names[i]: columns.first[i] for i in columns.left if len(columns.first)}
            for names, columns in (
                (self._numbers, self._of_numbers),
                (self._fields, self._of_fields),
            )
        )
        same = [f"{name} ({x + 0:g})" for name, x in numbers.items() if not np.isnan(x)]
        same += [name for name, x in fields.items() if x >= 0]
        missing = [name for name, x in numbers.items() if np.isnan(x)]
        missing += [name for name, x in fields.items() if x < 0]
        missing += sorted(self._empty)
        where = "in all" if self._rows < MOST_ROWS else f"in the first {self._rows:,}"
        said = [
            f"These features {what} {where} examples of {data}, so that the model learns nothing "
            f"from them: {some(names)}."
            for what, names in (("have one value", same), ("are missing", missing))
            if names
        ]
        if 0 < self._mean_weight < _LEAST_MEAN_WEIGHT:
            said.append(
                f"The sample weights that are not 0 have a mean of {self._mean_weight:.3g} {where} "
                f"examples of {data}. Learning rates, boosted trees and statistics of categories "
                "take them for numbers of examples: divide them by their mean."
            )
        return said
