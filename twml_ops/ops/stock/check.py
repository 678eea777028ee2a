"""Refusing bad input with the op library's messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf

_assume_valid: ContextVar[bool] = ContextVar("assume_valid", default=False)
_unchecked: ContextVar[bool] = ContextVar("unchecked", default=False)


class Precondition(NamedTuple):
    """Something that must hold of an op's input.

    Attributes:
        holds: gives a bool scalar, whatever the input.
        message: what the input is refused with, a {} in it for each of `numbers`.
        numbers: give scalars, whatever the input (see `item_or_zero`).
    """

    holds: Callable[[], Any]
    message: str
    numbers: tuple[Callable[[], Any], ...] = ()


@contextlib.contextmanager
def assume_valid() -> Iterator[None]:
    """In the block `require_well_formed` checks nothing: for graphs that are served.

    There every batch is well formed because the signature makes it, and an id out of range is
    still refused by the stock ops.
    """
    token = _assume_valid.set(True)
    try:
        yield
    finally:
        _assume_valid.reset(token)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """In the block nothing is checked at all: for compiled code, which cannot refuse anything."""
    token = _unchecked.set(True)
    try:
        yield
    finally:
        _unchecked.reset(token)


def require_well_formed(tensors: Any, *preconditions: Precondition) -> Any:
    """As `require`, and just `tensors` in graphs that trust their input."""
    return tensors if _assume_valid.get() else require(tensors, *preconditions)


def require(tensors: Any, *preconditions: Precondition) -> Any:
    """`tensors`, one or a tuple, once all preconditions have been found to hold.

    Raises:
        tf.errors.InvalidArgumentError: in eager mode at once, else when the graph runs. The first
            precondition that does not hold gives the message.
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

    def refuse() -> tf.Tensor:
        # Not tf.debugging.Assert, which would wrap each in a tf.cond again.
        said: list[Any] = []
        for precondition in preconditions:
            with tf.control_dependencies(said[-1:]):
                text = tf.strings.format(precondition.message, [n() for n in precondition.numbers])
                said.append(tf.raw_ops.Assert(condition=precondition.holds(), data=[text]))
        with tf.control_dependencies(said[-1:]):
            return tf.constant(False)

    all_hold = tf.reduce_all([precondition.holds() for precondition in preconditions])
    with tf.control_dependencies([tf.cond(all_hold, lambda: tf.constant(True), refuse)]):
        return tf.nest.map_structure(tf.identity, tensors)


def invalid_argument(message: str) -> tf.errors.InvalidArgumentError:
    """The error of an op that refuses its input."""
    return tf.errors.InvalidArgumentError(None, None, message)


def rank(tensor: tf.Tensor, expected: int, name: str) -> None:
    """Refuses a tensor known to have another rank."""
    if tensor.shape.rank not in (None, expected):
        shape = str(tensor.shape.as_list()).replace(" ", "").replace("None", "?")
        raise invalid_argument(f"{name} must have rank {expected}, got shape {shape}")


def variable_dtype(
    handle: tf.Tensor, name: str, dimensions: int | None = None, *dtypes: tf.DType
) -> tf.DType:
    """The type of a variable. Refuses one known to be of another than `dtypes`, or of another rank.

    TensorFlow's own ops end the process when a variable is read as what it is not. Without `dtypes`
    it must be float32; where the type is not known it is taken for the first of them.
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
    """Refuses an attribute that is none of its values."""
    if got not in choices:
        raise invalid_argument(f"{name} must be one of {choices}, got {got!r}")


def bits(name: str, got: int) -> None:
    """Refuses an id space that cannot have 2^got ids."""
    if not 1 <= got <= 62:
        raise invalid_argument(f"{name} must be in [1, 62], got {got}")


def index_of_first(is_bad: tf.Tensor) -> tf.Tensor:
    """The position of the first True; 0 without one."""
    return tf.argmax(tf.concat([tf.cast(is_bad, tf.int8), [0]], 0), output_type=tf.int64)


def item_or_zero(x: tf.Tensor, i: Any) -> tf.Tensor:
    """`x[i]`, or 0 where there is no such item."""
    i = tf.minimum(tf.cast(i, tf.int64), tf.size(x, tf.int64))
    return tf.concat([x, tf.zeros([1], x.dtype)], 0)[i]


def equal(message: str, expected: Callable[[], Any], got: Callable[[], Any]) -> Precondition:
    """Two numbers are the same; `message` shows them."""
    return Precondition(lambda: tf.equal(expected(), got()), message, (expected, got))


def size(tensor: tf.Tensor) -> Callable[[], tf.Tensor]:
    """The number of its items, int64."""
    return lambda: tf.size(tensor, tf.int64)


def ordered(
    x: tf.Tensor,
    is_bad: Callable[[], tf.Tensor],
    message: str,
    name: str | None = None,
    column: str = "",
) -> Precondition:
    """No neighbours of `x` are as `is_bad` marks them, [K - 1]: "x[i] = this after that".

    `column`: what follows i where `x` is a column of what `name` means.
    """

    def at() -> tf.Tensor:
        return index_of_first(is_bad())

    where = "" if name is None else f": {name}[{{}}{column}] = {{}} after {{}}"
    numbers = (lambda: at() + 1, lambda: item_or_zero(x, at() + 1), lambda: item_or_zero(x, at()))
    return Precondition(lambda: ~tf.reduce_any(is_bad()), message + where, numbers)


def ids_in_range(
    ids: tf.Tensor, input_dim: Any, name: str = "ids", column: str = ""
) -> Precondition:
    """Every id in [0, input_dim). `column`: as in `ordered`."""
    input_dim = tf.cast(input_dim, tf.int64)

    def is_bad() -> tf.Tensor:
        wide = tf.cast(ids, tf.int64)
        return (wide < 0) | (wide >= input_dim)

    return Precondition(
        lambda: ~tf.reduce_any(is_bad()),
        f"{name}[{{}}{column}] = {{}} is out of range [0, {{}})",
        (
            lambda: index_of_first(is_bad()),
            lambda: item_or_zero(ids, index_of_first(is_bad())),
            lambda: input_dim,
        ),
    )


def valid_offsets(splits: tf.Tensor, of: tf.Tensor, name: str, what: str) -> list[Precondition]:
    """`splits` starts at 0, never falls, and ends at the number of items of `of`."""
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
            lambda: tf.reduce_all(tf.equal(splits[-1:], size(of)())),
            f"{name}[{{}}] must be the number of {what} {{}}, got {{}}",
            (
                lambda: count() - 1,
                size(of),
                lambda: item_or_zero(splits, tf.maximum(count() - 1, 0)),
            ),
        ),
    ]


def csr(
    ids: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor, binary: bool
) -> list[Precondition]:
    """Sizes agree and splits are sound; ids may be any."""
    for tensor, name in ((ids, "ids"), (values, "values"), (row_splits, "row_splits")):
        rank(tensor, 1, name)
    each = " items for a binary batch" if binary else " items, one for each id"
    wanted = (lambda: tf.zeros([], tf.int64)) if binary else size(ids)
    return [
        equal("values must have {}" + each + ", got {}", wanted, size(values)),
        *valid_offsets(row_splits, ids, "row_splits", "entries"),
    ]


def values_allowed(values: tf.Tensor, is_bad: Callable[[tf.Tensor], tf.Tensor]) -> Precondition:
    """No value is one that `is_bad` finds; the first that is names its place."""

    def found() -> tf.Tensor:
        return is_bad(values)

    return Precondition(
        lambda: ~tf.reduce_any(found()),
        "values[{}] = {} is not finite",
        (lambda: index_of_first(found()), lambda: item_or_zero(values, index_of_first(found()))),
    )
