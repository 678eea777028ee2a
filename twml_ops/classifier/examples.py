"""Examples, labels and weights as callers give them, as a table of Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from twml_ops._frames import is_table, name_of, to_table, to_vector
from twml_ops.classifier.labels import classes_of, encoded


class TrainingExamples(NamedTuple):
    """The examples of a training.

    Attributes:
        table: the examples, whose labels are 0 and 1.
        label: name of their column of labels.
        weight: name of their column of weights, if there is one.
        classes: the two classes.
        uses: the fields of `RunConfig` about columns.
        all_rows: whether all rows are trained on.
    """

    table: pa.Table
    label: str
    weight: str | None
    classes: np.ndarray
    uses: dict[str, Any]
    all_rows: bool

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any,
        sample_weight: Any,
        columns: Mapping[str, str | None],
        lists: Mapping[str, Sequence[str]],
    ) -> TrainingExamples:
        """The examples that `fit` was given; see there."""
        if y is None and not is_table(X):
            raise ValueError(
                "Classifier requires y to be passed, but the target y is None; of a data frame "
                "the labels can be a column: fit(df, label='clicked')"
            )
        table = to_table(X)
        label, weight = columns["label"], columns["weight"]
        for argument, names in {**{k: [v] for k, v in columns.items()}, **lists}.items():
            if isinstance(names, str):
                raise ValueError(f"{argument}: expected names of columns, got the text {names!r}")
            for name in names:
                if name is not None and name not in table.column_names:
                    raise ValueError(
                        f"{argument}: there is no column {name!r}, there are {_columns(table)}"
                    )
        if sample_weight is not None:
            if weight is not None:
                raise ValueError("weight and sample_weight cannot both be given")
            weight = free_name("sample_weight", table)
            weights = sample_weights(sample_weight, len(table))
            table = table.append_column(weight, pa.array(weights))
        counted = None if weight is None else _numbers(table.column(weight), weight)
        if y is None:
            label = "label" if label is None else label
            if label not in table.column_names:
                raise ValueError(
                    f"Classifier requires y to be passed, but the target y is None, and there is "
                    f"no column {label!r}; name the column of labels: label=. There are "
                    f"{_columns(table)}"
                )
            values = table.column(label)
        elif label is not None:
            raise ValueError("label and y cannot both be given")
        else:
            label, values = free_name(str(getattr(y, "name", None) or "label"), table), y
        found = cls._encoded(label, values, len(table))
        classes = classes_of(label, found, counted)
        uses: dict[str, Any] = {"label": [label], "weight": weight}
        uses |= {"time": columns["time"], "group": columns["group"]}
        uses |= {name: list(value) for name, value in lists.items()}
        table = with_column(table, label, encoded(label, found, classes))
        return cls(table, label, weight, classes, uses, y is not None)

    @staticmethod
    def _encoded(label: str, values: Any, rows: int) -> Any:
        """The labels, of which there must be as many as rows."""
        values = to_vector(values, label)
        if len(values) != rows:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: {[rows, len(values)]}"
                f": X has {rows} rows and y has {len(values)}"
            )
        return values

    def more(self, examples: Any) -> pa.Table:
        """Evaluation data, with the same columns.

        Raises:
            ValueError: labels are missing, or of neither class.
        """
        X, y, *others = examples if isinstance(examples, tuple) else (examples, None)
        if others or (y is None and not is_table(X)):
            raise ValueError("eval: expected a data frame with labels, or a pair (X, y)")
        table = to_table(X)
        values = column_of(X, self.label) if y is None else self._encoded(self.label, y, len(table))
        table = with_column(table, self.label, encoded(self.label, values, self.classes))
        if self.weight is not None and self.weight not in table.column_names:
            table = table.append_column(self.weight, pa.array(np.ones(len(table))))
        return table


def column_of(data: Any, name: str) -> pa.ChunkedArray:
    """A column of a data frame.

    Raises:
        ValueError: it is not there.
    """
    if not is_table(data):
        raise ValueError(f"y: expected the labels of {name_of(data)}, got None")
    table = to_table(data)
    if name not in table.column_names:
        raise ValueError(
            f"y: expected the labels, or a column {name!r}; there are {_columns(table)}"
        )
    return table.column(name)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The table with a column that is replaced, or added at its end."""
    if name not in table.column_names:
        return table.append_column(name, values)
    return table.set_column(table.column_names.index(name), name, values)


def free_name(name: str, table: pa.Table) -> str:
    """The name, with underscores behind it until no column has it."""
    while name in table.column_names:
        name += "_"
    return name


def sample_weights(data: Any, rows: int) -> np.ndarray:
    """Sample weights, float64 [rows]."""
    weights = to_vector(data, "sample_weight")
    if isinstance(weights, np.ndarray) and weights.ndim == 0:
        weights = np.full(rows, weights)
    if isinstance(weights, np.ndarray) and weights.ndim > 1:
        raise ValueError(f"Sample weights must be 1D array or scalar, got shape {weights.shape}")
    if len(weights) != rows:
        raise ValueError(f"sample_weight.shape == ({len(weights)},), expected ({rows},)!")
    numbers = _numbers(weights, "sample_weight")
    if not (numbers > 0).any():
        raise ValueError("sample_weight: all sample weights are zero")
    return numbers


def _numbers(values: Any, name: str) -> np.ndarray:
    """Numbers that are at least 0, float64."""
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{name}: expected numbers: {e}") from e
    bad = ~(np.isfinite(numbers) & (numbers >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{name}: a weight must be a number >= 0, got {numbers[row]} in row {row}")
    return numbers


def _columns(table: pa.Table) -> str:
    """The columns of a table in an error. An import at the top would import pandas."""
    from twml_ops.data.errors import listed

    return listed(table.column_names)
