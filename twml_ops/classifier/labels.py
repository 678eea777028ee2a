"""The two classes of a label, and its values as 0 and 1."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twml_ops._frames import to_vector
from twml_ops.classifier.scikit_learn import conversion_warning

_WORDS = ({"no", "yes"}, {"false", "true"}, {"n", "y"}, {"f", "t"})


def classes_of(name: str, data: Any, weights: np.ndarray | None = None) -> np.ndarray:
    """The two classes; the first one is the negative class.

    They are in ascending order; so are the words yes and no, true and false, in any spelling, of
    which the first one of each pair is the positive class for the readers of files as well.

    Args:
        name: of the label, for messages.
        data: a label for each row.
        weights: of the rows; rows with the weight 0 do not count. None: all rows count.

    Raises:
        ValueError: there are not two classes, or a label is missing.
    """
    values = _values(name, data)
    if weights is not None:
        values = values.filter(pa.array(weights > 0))
    found = _array(values.unique())
    if found.dtype.kind == "f" and not (np.trunc(found) == found).all():
        raise ValueError(
            f"Unknown label type: continuous. The label {name} must have two classes, got numbers "
            f"with fractions such as {found[np.trunc(found) != found][0]}"
        )
    if len(found) > 2:
        some = ", ".join(map(repr, found[:3].tolist()))
        raise ValueError(
            "Only binary classification is supported. The type of the target is multiclass: the "
            f"label {name} has {len(found):,} different values, such as {some}"
        )
    if len(found) < 2:
        raise ValueError(
            f"the label {name} must have two classes, got one class: {found.tolist()}"
            f"{'' if weights is None else ' in the rows with a weight above 0'}"
        )
    lower = [str(value).lower() for value in found.tolist()]
    order = np.argsort(lower) if set(lower) in _WORDS else np.argsort(found)
    return found[order]


def encoded(name: str, data: Any, classes: np.ndarray) -> pa.Array:
    """The labels as int8: 0 and 1, for the first and the second class.

    Args:
        name: of the label, for messages.
        data: a label for each row.
        classes: the two classes.

    Raises:
        ValueError: a label is missing, or is neither class.
    """
    values = _values(name, data)
    try:
        known = pa.array(classes).cast(values.type)
        codes = pc.index_in(values, value_set=known)
    except pa.ArrowException as e:
        raise _unknown(name, classes, str(values[0].as_py()), 0) from e
    if codes.null_count:
        row = int(np.argmax(codes.is_null().to_numpy(zero_copy_only=False)))
        raise _unknown(name, classes, values[row].as_py(), row)
    return codes.cast(pa.int8())


def _unknown(name: str, classes: np.ndarray, got: object, row: int) -> ValueError:
    return ValueError(
        f"the label {name}: expected one of the classes {classes.tolist()}, got {got!r} in row "
        f"{row}"
    )


def _values(name: str, data: Any) -> pa.Array:
    """The labels as numbers, bools or text."""
    values = to_vector(data, name)
    if isinstance(values, np.ndarray):
        values = _of_numpy(name, values)
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    if not any(test(values.type) for test in (*kinds, *texts)):
        raise ValueError(
            f"Unknown label type: {values.type}. The label {name} must be numbers, bools or text"
        )
    if pa.types.is_floating(values.type):
        array = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        if np.isinf(array).any():
            raise ValueError(f"Input {name} contains infinity, in row {np.isinf(array).argmax()}")
        values = pa.array(array, from_pandas=True)
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"Input {name} contains NaN: the label of row {row} is missing")
    return values.cast(pa.float64()) if pa.types.is_decimal(values.type) else values


def _of_numpy(name: str, values: np.ndarray) -> pa.Array:
    if values.ndim == 2 and values.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of "
            "y to (n_samples,), for example using ravel().",
            conversion_warning(),
            stacklevel=2,
        )
        values = values.ravel()
    if values.ndim != 1:
        raise ValueError(f"{name} should be a 1d array, got an array of shape {values.shape}")
    if values.dtype.kind in "SO":
        values = np.array([v.decode() if isinstance(v, bytes) else v for v in values], object)
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError) as e:
        raise ValueError(
            f"Unknown label type: the label {name} must have values of one type, numbers, bools or "
            f"text: {e}"
        ) from e


def _array(values: pa.Array) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False))
