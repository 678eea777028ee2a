"""Input checks that raise the op library's messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf

_assume_valid: ContextVar[bool] = ContextVar("assume_valid", default=False)
_unchecked: ContextVar[bool] = ContextVar("unchecked", default=False)


class Precondition(NamedTuple):
    """A condition on the input of an op.

    Attributes:
        holds: Computes a bool scalar, for any input.
        message: The error message, with a {} for each of `numbers`.
        numbers: Functions that compute scalars, for any input (see `item_or_zero`).
    """

    holds: Callable[[], Any]
    message: str
    numbers: tuple[Callable[[], Any], ...] = ()


@contextlib.contextmanager
def assume_valid() -> Iterator[None]:
    """In the block, `require_well_formed` checks nothing: for graphs that are served.

    A served signature makes every batch well-formed, and stock ops still refuse an id out of range.
    """
    token = _assume_valid.set(True)
    try:
        yield
    finally:
        _assume_valid.reset(token)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """In the block, nothing is checked: for compiled code, which cannot raise errors."""
    token = _unchecked.set(True)
    try:
        yield
    finally:
        _unchecked.reset(token)


def require_well_formed(tensors: Any, *preconditions: Precondition) -> Any:
    """Checks as `require`, but not in an `assume_valid` block."""
    return tensors if _assume_valid.get() else require(tensors, *preconditions)


def require(tensors: Any, *preconditions: Precondition) -> Any:
    """Checks preconditions.

    Args:
        tensors: A tensor or a tuple of tensors.
        *preconditions: Conditions on them.

    Returns:
        `tensors`. In a graph they depend on the checks.

    Raises:
        tf.errors.InvalidArgumentError: A precondition does not hold; the message is that of the
            first. In a graph the error is raised when the graph runs.
    """
    if _unchecked.get():
        return tensors
    if tf.executing_eagerly():
        for precondition in preconditions:
            if not precondition.holds():
                raise invalid_argument(
                    precondition.message.format(*(n().numpy() for n in precondition.numbers))
                )
        return tensors

    def fail() -> tf.Tensor:
        # Not tf.debugging.Assert, which wraps each condition in a tf.cond of its own.
        asserts: list[Any] = []
        for precondition in preconditions:
            with tf.control_dependencies(asserts[-1:]):
                text = tf.strings.format(precondition.message, [n() for n in precondition.numbers])
                asserts.append(tf.raw_ops.Assert(condition=precondition.holds(), data=[text]))
        with tf.control_dependencies(asserts[-1:]):
            return tf.constant(False)

    all_hold = tf.reduce_all([precondition.holds() for precondition in preconditions])
    with tf.control_dependencies([tf.cond(all_hold, lambda: tf.constant(True), fail)]):
        return tf.nest.map_structure(tf.identity, tensors)


def invalid_argument(message: str) -> tf.errors.InvalidArgumentError:
    """The error of an op with invalid input."""
    return tf.errors.InvalidArgumentError(None, None, message)


def rank(tensor: tf.Tensor, expected: int, name: str) -> None:
    """Raises if a tensor is known to have a rank other than `expected`."""
    if tensor.shape.rank not in (None, expected):
        shape = str(tensor.shape.as_list()).replace(" ", "").replace("None", "?")
        raise invalid_argument(f"{name} must have rank {expected}, got shape {shape}")


def variable_dtype(
    handle: tf.Tensor, name: str, dimensions: int | None = None, *dtypes: tf.DType
) -> tf.DType:
    """The dtype of a variable, after a check of dtype and rank as far as they are known.

    TensorFlow's own ops abort the process when a variable is read with a wrong dtype.

    Args:
        handle: Resource handle of the variable.
        name: Name of the argument, for the message.
        dimensions: Expected rank, or None.
        *dtypes: Allowed dtypes; default float32. If the dtype is unknown, the first is returned.

    Returns:
        The dtype.
    """
    dtypes = dtypes or (tf.float32,)
    data = getattr(handle, "_handle_data", None)
    kinds = data.shape_and_type if data is not None and data.is_set else []
    got = tf.as_dtype(kinds[0].dtype) if kinds else dtypes[0]
    if got not in dtypes:
        names = ["double" if d == tf.float64 else d.name for d in (*dtypes, got)]
        raise invalid_argument(f"{name} must be {' or '.join(names[:-1])}, got {names[-1]}")
    found = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64).shape[0]
    if dimensions is not None and found not in (None, dimensions):
        raise invalid_argument(f"{name} must have rank {dimensions}, got rank {found}")
    return got


def choice(name: str, got: str, choices: tuple[str, ...]) -> None:
    """Raises if the value of an attribute is not one of its choices."""
    if got not in choices:
        raise invalid_argument(f"{name} must be one of {choices}, got {got!r}")


def bits(name: str, got: int) -> None:
    """Raises if an id space cannot have 2^got ids."""
    if not 1 <= got <= 62:
        raise invalid_argument(f"{name} must be in [1, 62], got {got}")


def index_of_first(condition: tf.Tensor) -> tf.Tensor:
    """The index of the first True; 0 if there is none."""
    return tf.argmax(tf.concat([tf.cast(condition, tf.int8), [0]], 0), output_type=tf.int64)


def item_or_zero(x: tf.Tensor, i: Any) -> tf.Tensor:
    """`x[i]`, or 0 if there is no such item."""
    i = tf.minimum(tf.cast(i, tf.int64), tf.size(x, tf.int64))
    return tf.concat([x, tf.zeros([1], x.dtype)], 0)[i]


def equal(message: str, expected: Callable[[], Any], got: Callable[[], Any]) -> Precondition:
    """Requires two numbers to be equal; `message` has a {} for each."""
    return Precondition(lambda: tf.equal(expected(), got()), message, (expected, got))


def size(tensor: tf.Tensor) -> Callable[[], tf.Tensor]:
    """A function that computes the number of items, int64."""
    return lambda: tf.size(tensor, tf.int64)


def ordered(
    x: tf.Tensor,
    violations: Callable[[], tf.Tensor],
    message: str,
    name: str | None = None,
    column: str = "",
) -> Precondition:
    """Requires neighboring items of `x` [K] to be in order.

    Args:
        x: The items.
        violations: Computes bool [K - 1]: whether x[i + 1] may not follow x[i].
        message: Start of the error message.
        name: Name of `x`, for the place in the message; None: without a place.
        column: What follows the index in the message if `x` is a column of `name`.

    Returns:
        The precondition.
    """

    def at() -> tf.Tensor:
        return index_of_first(violations())

    where = "" if name is None else f": {name}[{{}}{column}] = {{}} after {{}}"
    numbers = (lambda: at() + 1, lambda: item_or_zero(x, at() + 1), lambda: item_or_zero(x, at()))
    return Precondition(lambda: ~tf.reduce_any(violations()), message + where, numbers)


def ids_in_range(
    ids: tf.Tensor, input_dim: Any, name: str = "ids", column: str = ""
) -> Precondition:
    """Requires every id to be in [0, input_dim). `name` and `column`: as in `ordered`."""
    input_dim = tf.cast(input_dim, tf.int64)

    def out_of_range() -> tf.Tensor:
        wide = tf.cast(ids, tf.int64)
        return (wide < 0) | (wide >= input_dim)

    return Precondition(
        lambda: ~tf.reduce_any(out_of_range()),
        f"{name}[{{}}{column}] = {{}} is out of range [0, {{}})",
        (
            lambda: index_of_first(out_of_range()),
            lambda: item_or_zero(ids, index_of_first(out_of_range())),
            lambda: input_dim,
        ),
    )


def valid_offsets(
    splits: tf.Tensor, items: tf.Tensor, name: str, item_name: str
) -> list[Precondition]:
    """Requires `splits` to start at 0, be non-decreasing, and end at the number of items.

    Args:
        splits: CSR offsets.
        items: What they split.
        name: Name of `splits`.
        item_name: What the items are called in the message.

    Returns:
        The preconditions.
    """
    count = size(splits)
    return [
        Precondition(
            lambda: count() > 0,
            f"{name} must not be empty: it has one more item than the batch has rows",
        ),
        Precondition(
            lambda: tf.reduce_all(tf.equal(splits[:1], 0)),
            name + "[0] must be 0, got {}",
            (lambda: item_or_zero(splits, 0),),
        ),
        ordered(splits, lambda: splits[1:] < splits[:-1], f"{name} must be non-decreasing", name),
        Precondition(
            lambda: tf.reduce_all(tf.equal(splits[-1:], size(items)())),
            f"{name}[{{}}] must be the number of {item_name} {{}}, got {{}}",
            (
                lambda: count() - 1,
                size(items),
                lambda: item_or_zero(splits, tf.maximum(count() - 1, 0)),
            ),
        ),
    ]


def csr(
    ids: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor, binary: bool
) -> list[Precondition]:
    """Requires sizes to agree and offsets to be valid. Ids are not checked."""
    for tensor, name in ((ids, "ids"), (values, "values"), (row_splits, "row_splits")):
        rank(tensor, 1, name)
    text = " items for a binary batch" if binary else " items, one for each id"
    expected = (lambda: tf.zeros([], tf.int64)) if binary else size(ids)
    return [
        equal("values must have {}" + text + ", got {}", expected, size(values)),
        *valid_offsets(row_splits, ids, "row_splits", "entries"),
    ]


def all_finite(values: tf.Tensor, is_invalid: Callable[[tf.Tensor], tf.Tensor]) -> Precondition:
    """Requires `is_invalid` to find no value that is not finite."""

    def invalid() -> tf.Tensor:
        return is_invalid(values)

    return Precondition(
        lambda: ~tf.reduce_any(invalid()),
        "values[{}] = {} is not finite",
        (
            lambda: index_of_first(invalid()),
            lambda: item_or_zero(values, index_of_first(invalid())),
        ),
    )
