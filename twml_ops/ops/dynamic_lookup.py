"""`dynamic_lookup`: rows of a bounded table for ids of an unbounded space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops.ops._library import library

Eviction = Literal["none", "lru", "lfu", "age"]
SKETCH_DEPTH = 4
HEADER_SIZE = 4


def dynamic_lookup(
    ids: Any,
    state: Sequence[tf.Variable],
    training: Any = False,
    *,
    min_count: int = 1,
    eviction: Eviction = "lru",
    max_age: int = 0,
    pinned: Any = 1,
    seed: int = 0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Looks up the rows of ids; in training, new ids get rows.

    Row 0 is shared by all ids without a row of their own. See `twml_ops.core.dynamic_lookup`.

    Args:
        ids: int64 [K], any integers.
        state: variables `keys`, `last_used` and `counts`, int64 [capacity]; `index`, int32 [size];
            `sketch`, uint8 [4, width]; `header`, int64 [4].
        training: bool scalar: whether ids are counted and get rows. If it is false, the state is
            only read.
        min_count: number of sightings after which an id gets a row, in [1, 255].
        eviction: which row is evicted if none is free.
        max_age: of `eviction="age"`, in lookups.
        pinned: int64 scalar: rows that this and the preceding `pinned - 1` lookups used are not
            evicted.
        seed: the seed of the hashes.

    Returns:
        (rows int64 [K], reset int64 [E]): the row of each id, and the rows that have a new id.

    Raises:
        tf.errors.InvalidArgumentError: the state has other shapes. It is unchanged.
    """
    rows, reset = library.twml_dynamic_lookup(
        ids,
        *(variable.handle for variable in state),
        training,
        tf.cast(pinned, tf.int64),
        min_count=min_count,
        eviction=eviction,
        max_age=max_age,
        seed=seed,
    )
    return rows, reset


def shared_dynamic_lookup(
    ids: Any,
    state: Sequence[tf.Variable],
    new_rows: tf.Variable,
    base: Any,
    begun: Any,
    *,
    min_count: int = 1,
    eviction: Eviction = "lru",
    max_age: int = 0,
    pinned: Any = 1,
    seed: int = 0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """`dynamic_lookup` in training, of several processes that do not wait for each other.

    Lookups have numbers: `base` plus the number of lookups so far. A row that got a new id is kept,
    with the number of the lookup in which it did, until a process says that the row has begun anew
    wherever it is.

    Args:
        ids: int64 [K], any integers.
        state: as of `dynamic_lookup`.
        new_rows: variable int64 [1 + E, 2]: the number of the last lookup and `base`, then each row
            with a new id and its number. It changes together with `state`.
        base: int64 scalar: what `new_rows` has.
        begun: int64 scalar: the rows of all lookups up to this number have begun anew.
        min_count: as of `dynamic_lookup`.
        eviction: as of `dynamic_lookup`.
        max_age: as of `dynamic_lookup`.
        pinned: as of `dynamic_lookup`.
        seed: as of `dynamic_lookup`.

    Returns:
        (rows int64 [K], int64 [1 + E, 2]): the row of each id, and the new value of `new_rows`.

    Raises:
        tf.errors.FailedPreconditionError: `new_rows` has another base. Nothing is changed.
        tf.errors.InvalidArgumentError: the state has other shapes. Nothing is changed.
    """
    rows, recent = library.twml_shared_dynamic_lookup(
        ids,
        *(variable.handle for variable in (*state, new_rows)),
        base,
        begun,
        tf.cast(pinned, tf.int64),
        min_count=min_count,
        eviction=eviction,
        max_age=max_age,
        seed=seed,
    )
    return rows, recent


tf.no_gradient("Twml>DynamicLookup")
tf.no_gradient("Twml>SharedDynamicLookup")
