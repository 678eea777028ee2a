"""Data frames and arrays of other packages as Arrow tables.

It imports none of these packages, and not TensorFlow: it asks objects for the Arrow interchange
protocols.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import interchange

from twml_ops._arrow_columns import (
    as_tokens,
    decoded,
    floats,
    integer_texts,
    is_list,
    is_number,
    is_token,
    list_lengths,
    plain_type,
    split_lists,
    texts_of,
    time_texts,
    trimmed,
    with_plain_types,
)


def is_table(data: object) -> bool:
    """Whether it has named columns: a DataFrame of pandas or Polars, a table of Arrow, and others.

    Args:
        data: any object.
    """
    columns = hasattr(data, "columns") or hasattr(data, "column_names")
    return columns and any(hasattr(data, n) for n in ("__arrow_c_stream__", "__dataframe__"))


def name_of(data: object) -> str:
    """What it is, for messages: "a pandas DataFrame", say.

    Args:
        data: any object.
    """
    package, kind = type(data).__module__.partition(".")[0], type(data).__name__
    if package == "builtins":
        return f"a {kind}"
    return f"{'an' if package[0] in 'aeiou' else 'a'} {package} {kind}"


def has_text_names(data: Any) -> bool:
    """Whether the columns have names, which are all text; arrays have none.

    Args:
        data: a table or an array.
    """
    if not is_table(data):
        return False
    return all(isinstance(name, str) for name in column_names(data))


def column_names(data: Any) -> list[Any]:
    """The names of the columns of a table, which pandas does not confine to text.

    Args:
        data: a table.
    """
    return [*(data.column_names if hasattr(data, "column_names") else data.columns)]


def to_table(data: Any, names: Collection[str] | None = None) -> pa.Table:
    """The columns of a data frame, a table or an array [rows, columns].

    The index of a pandas DataFrame is no column. The columns of an array are `x0`, `x1` and so on.
    Types that the readers do not know, such as Arrow's views of text, become the usual ones.

    Args:
        data: a data frame or an array.
        names: the columns of a data frame that are needed: other ones may hold anything, and are
            left out where they cannot be columns of a table. None: all.

    Raises:
        TypeError: it is neither.
        ValueError: it has no rows or no columns, two columns of one name, or a column with values
            of several types.
    """
    if not is_table(data):
        table = _array(data)
    elif names is None:
        table = _frame(data)
    else:
        table = _frame(_only(data, names))
    shape = (table.num_rows, table.num_columns)
    for size, what in zip(shape, ("sample", "feature"), strict=True):
        if not size:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={shape}) while a minimum of 1 is required."
            )
    found = table.column_names
    if twice := sorted(n for n, count in Counter(found).items() if count > 1):
        raise ValueError(f"{name_of(data)} has several columns with the name {', '.join(twice)}")
    return table


def _only(data: Any, names: Collection[str]) -> Any:
    """A data frame without the columns that are not needed, of the packages that can do it."""
    there = column_names(data)
    kept = [name for name in there if isinstance(name, str) and name in names]
    if len(kept) in (0, len(there)):
        return data
    if hasattr(data, "iloc"):
        return data.loc[:, kept] if data.columns.is_unique else data
    return data.select(kept) if hasattr(data, "select") else data


def _frame(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        table = data
    elif isinstance(data, pa.RecordBatch):
        table = pa.Table.from_batches([data])
    elif hasattr(data, "iloc"):  # pandas, whose protocol makes columns of its index
        table = _converted(data, lambda: pa.Table.from_pandas(data, preserve_index=False))
    elif hasattr(data, "__arrow_c_stream__"):
        table = _converted(data, lambda: pa.table(data))
    else:
        table = _converted(data, lambda: interchange.from_dataframe(data))
    return with_plain_types(table)


def _converted(data: object, convert: Callable[[], pa.Table]) -> pa.Table:
    try:
        return convert()
    except (pa.ArrowException, TypeError) as e:
        text = " ".join(map(str, e.args))
        raise ValueError(
            f"{name_of(data)}: a column must have values of one type, numbers, text, bools, times "
            f"or lists of them, or missing ones: {text}"
        ) from e


def _array(data: Any) -> pa.Table:
    if hasattr(data, "tocsr"):
        raise TypeError(
            "Sparse data was passed, expected a data frame or a dense array (categories need no "
            "encoder; one of scikit-learn has the argument sparse_output=False); a column `ids` "
            "with lists of integers, and a column `values`, hold sparse features"
        )
    array = np.asarray(data)
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported, got an array of {array.dtype}")
    if array.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {array.ndim}D array instead. Reshape your data either using "
            "array.reshape(-1, 1) if your data has a single feature or array.reshape(1, -1) if it "
            "contains a single sample."
        )
    if 0 in array.shape:  # Arrow has no rows without columns
        what = "sample" if array.shape[0] == 0 else "feature"
        raise ValueError(
            f"Found array with 0 {what}(s) (shape={array.shape}) while a minimum of 1 is required."
        )
    names = [f"x{i}" for i in range(array.shape[1])]
    return pa.table([_column(array[:, i], n) for i, n in enumerate(names)], names=names)


def _column(values: Any, name: str) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError) as e:
        raise ValueError(
            f"column {name}: expected values of one type, numbers, text or bools, or missing ones: "
            f"{e}"
        ) from e


def to_vector(data: Any, name: str) -> np.ndarray | pa.Array:
    """One value for each row, without a dictionary.

    Args:
        data: a Series, an Arrow array, a data frame with one column, or an array [rows] or
            [rows, 1].
        name: of the argument, for messages.

    Returns:
        An array of Arrow, or what NumPy makes of the data.

    Raises:
        ValueError: it is something else.
    """
    if is_table(data):
        table = to_table(data)
        if table.num_columns != 1:
            raise ValueError(f"{name} should be a 1d array, got {table.num_columns} columns")
        data = table.column(0)
    elif hasattr(data, "iloc"):  # a pandas Series: categories, and types with missing values
        data = _column(data, name)
    elif not isinstance(data, (pa.Array, pa.ChunkedArray)) and hasattr(data, "__arrow_c_stream__"):
        data = pa.chunked_array(data)
    if not isinstance(data, (pa.Array, pa.ChunkedArray)):
        return np.asarray(data)
    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks()
    if isinstance(data, pa.ChunkedArray):  # what is too large for one array
        raise ValueError(f"{name}: expected at most 2 GB of text, got {data.nbytes:,} bytes")
    data = data.cast(plain_type(data.type)) if plain_type(data.type) != data.type else data
    return data.dictionary_decode() if pa.types.is_dictionary(data.type) else data


def raw_columns(
    data: Any,
    described: Sequence[tuple[str, str, str, str, Any]],
    separators: Mapping[str, str],
    times: Collection[str] = (),
) -> dict[str, Any]:
    """The columns of a data frame as `twml_ops.core.Scorer` takes them from a mapping.

    Args:
        data: a data frame or an Arrow table. Other columns are left out.
        described: the columns, as `Scorer.describe(raw=True)` gives them.
        separators: what is between the parts of a text that is a list, by column.
        times: the columns that are times.

    Raises:
        ValueError: a column is missing or has another type.
    """
    table, found = to_table(data, {name for name, *_ in described}), dict[str, Any]()
    bags = {splits for _, form, _, splits, _ in described if form == "bag"}
    optional = {
        name
        for name, form, _, splits, _ in described
        if form == "row_splits" or (form == "values" and splits not in bags)
    }
    names = [name for name, *_ in described]
    missing = [n for n in names if n not in table.column_names and n not in optional]
    if missing:
        raise ValueError(f"the columns {missing} are missing, got {column_names(data)}")
    for name, form, _, splits, _ in described:
        if form in ("ids", "bag"):
            column = _lists(table.column(name).combine_chunks(), name, form, separators)
            flat, lengths = column.flatten(), list_lengths(column)
            found[name] = _tokens(flat, name) if form == "bag" else flat.to_numpy()
            found[splits] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        elif name in times:
            try:
                column = time_texts(table.column(name).combine_chunks())
            except ValueError as e:
                raise ValueError(f"column {name!r}: {e}") from None
            found[name] = _tokens(column, name)
        elif form == "strings":
            found[name] = _tokens(table.column(name).combine_chunks(), name)
        elif form == "dense":
            column = table.column(name).combine_chunks()
            if not (is_number(column.type) or column.type in (pa.bool_(), pa.null())):
                raise ValueError(f"column {name!r} must hold numbers, got {column.type}")
            found[name] = floats(column)
    for name, form, *_ in described:
        if form == "values" and name in table.column_names:
            lists = _lists(table.column(name).combine_chunks(), name, form, separators)
            found[name] = _numbers(lists.flatten(), name)
        elif form == "values":
            (ids,) = (n for n, form, *_ in described if form == "ids")
            found[name] = np.ones(len(found[ids]), np.float32)
    return found


def _lists(column: pa.Array, name: str, form: str, separators: Mapping[str, str]) -> pa.Array:
    """A column of lists. Texts are divided, and a single category or weight is a list."""
    kind, types = column.type, pa.types
    if is_list(kind):
        return column
    if form != "ids" and (name in separators or kind == pa.null()):
        if types.is_dictionary(kind):
            column = column.dictionary_decode()
        if types.is_string(column.type) or types.is_large_string(column.type):
            return split_lists(texts_of(column), separators[name])
        if is_number(column.type) or column.type in (pa.bool_(), pa.null()):
            there = column.is_valid().to_numpy(zero_copy_only=False)
            offsets = np.concatenate([[0], np.cumsum(there)]).astype(np.int32)
            return pa.ListArray.from_arrays(offsets, column.drop_null())
    hint = ""
    if form != "ids" and name not in separators and is_token(kind):
        hint = "; the scorer was exported without the separator of texts: export it again"
    raise ValueError(f"column {name!r} must hold lists, in a data frame as well, got {kind}{hint}")


def _numbers(column: pa.Array, name: str) -> np.ndarray:
    """Numbers, of texts as well; NaN for empty texts."""
    if is_token(column.type) and not is_number(column.type):
        texts = trimmed(column)
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
        try:
            column = texts.cast(pa.float64())
        except pa.ArrowInvalid as e:
            raise ValueError(f"column {name!r} must hold lists of numbers: {e}") from e
    return floats(column)


def _tokens(column: pa.Array, name: str) -> np.ndarray:
    """Categories as text or bytes, None where missing."""
    column, kind = decoded(column), column.type
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    if pa.types.is_floating(column.type):
        texts, bad = integer_texts(floats(column))
        if bad is not None:
            raise ValueError(
                f"column {name!r} must hold text, integers or bools, got {column[bad].as_py()} in "
                f"row {bad}"
            )
        column = texts
    if not is_token(column.type):
        raise ValueError(f"column {name!r} must hold text, integers or bools, got {kind}")
    return np.asarray(as_tokens(column).to_numpy(zero_copy_only=False), object)
