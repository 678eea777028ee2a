"""Groupings of a batch's entries by id that the ops of a graph share.

The gradients of tables, their updates, the gradient of a normalization's bias and its running state
all need the entries of a batch grouped by id. In a graph they take one grouping. Eager ops group by
themselves.

A grouping is in the memory of one device, so ops share it only if they run on the same one (see
`library.beside`). On a GPU only whole batches are grouped.

A grouping is a variant that cannot be a constant of a graph. TensorFlow would replace an op whose
inputs are all constants by its output, so the size of the id space is read from a variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library
from twml_ops.ops._tape import in_version_1_control_flow

_ATTRIBUTE = "_twml_shared_groups"  # of a graph


class _SharedGroups:
    """The groupings of one graph, by the tensors that they were made of and the device."""

    def __init__(self) -> None:
        self.of_ids: dict[Any, tf.Tensor | None] = {}  # None: not made yet
        self.of_batch: dict[Any, tf.Tensor] = {}
        self.field_starts: dict[Any, list[int]] = {}  # of ids that are rows of fields
        self.packed: dict[Any, tf.Tensor] = {}  # the messages that have the entries of a batch


def share_groups_of(ids: tf.Tensor) -> None:
    """Declares that ops other than products with tables need the ids of a batch grouped.

    `group_ids` and `group_batch` then group the ids once. Without this declaration a batch is
    grouped together with its rows and values, which is faster for large batches.

    Args:
        ids: Integer [K].
    """
    shared = _shared_groups()
    if shared is not None:
        shared.of_ids.setdefault(ids.ref(), None)


def declare_fields(ids: tf.Tensor, num_rows: Sequence[int], first_row: int) -> None:
    """Declares that ids are rows of fields, whose entries can be grouped field by field.

    Args:
        ids: int64 [B F], of which entry k is one of field k mod F.
        num_rows: Number of ids of each field, which follow the ids of the field before.
        first_row: First id of the first field.
    """
    shared = _shared_groups()
    if shared is not None:
        starts = itertools.accumulate(num_rows, initial=first_row)
        shared.field_starts.setdefault(ids.ref(), list(starts))


def declare_packed(
    ids: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor, packed: tf.Tensor
) -> None:
    """Declares that a message has the entries of a batch, perhaps with ids that are sorted already.

    Args:
        ids: Integer [K].
        values: float32 [K], or [0] for a binary batch.
        row_splits: int64 [B + 1], CSR offsets.
        packed: The message of `pack_entries` from which these were unpacked.
    """
    shared = _shared_groups()
    if shared is not None:
        shared.packed[ids.ref(), values.ref(), row_splits.ref()] = packed


def group_ids(ids: tf.Tensor, table: tf.Tensor, num_rows: int | None = None) -> list[tf.Tensor]:
    """The ids grouped, as the list input `groups` of an op takes them.

    Args:
        ids: Integer [K].
        table: Handle of a variable with a row for each id.
        num_rows: N, if the variable is the cache of a table [N, D] whose rows are in a file.

    Returns:
        The grouping that all callers with these ids in this graph share, or nothing if the op has
        to group them by itself.
    """
    shared = _shared_groups()
    if shared is None or library.runs_on_gpu or ids.ref() not in shared.of_ids:
        return []
    groups = shared.of_ids[ids.ref()]
    if groups is None:
        groups = shared.of_ids[ids.ref()] = library.twml_group_ids(ids, _input_dim(table, num_rows))
    return [groups]


def group_batch(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    binary: bool,
    table: tf.Tensor,
    num_rows: int | None = None,
) -> list[tf.Tensor]:
    """The entries of a batch grouped, as the list input `groups` of an op takes them.

    Args:
        ids: Integer [K].
        values: float32 [K], or [0] for a binary batch.
        row_splits: int64 [B + 1], CSR offsets.
        binary: Whether the batch is binary.
        table: Handle of a variable with a row for each id.
        num_rows: N, the number of rows of the table, if it is known. It is needed if the variable
            is the cache of a table whose rows are in a file. On a GPU only tables with as many rows
            share a grouping, because an update there does not check ids again.

    Returns:
        The grouping that all callers with this batch in this graph share, or nothing if the op has
        to group it by itself.
    """
    shared = _shared_groups()
    if shared is None or (library.runs_on_gpu and num_rows is None):
        return []
    place = (library.device, num_rows if library.runs_on_gpu else None)
    key = (ids.ref(), values.ref(), row_splits.ref(), binary, *place)
    if key not in shared.of_batch:
        shared.of_batch[key] = new_group_batch(ids, values, row_splits, binary, table, num_rows)
    return [shared.of_batch[key]]


def new_group_batch(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    binary: bool,
    table: tf.Tensor,
    num_rows: int | None = None,
) -> tf.Tensor:
    """A grouping that is not shared; see `group_batch`."""
    input_dim = _input_dim(table, num_rows)
    shared = _shared_groups()
    if shared is not None and not library.runs_on_gpu:
        packed = shared.packed.get((ids.ref(), values.ref(), row_splits.ref()))
        if packed is not None:
            return library.twml_group_packed_entries(packed, input_dim, T=ids.dtype, binary=binary)
    groups = group_ids(ids, table, num_rows)
    starts = [] if shared is None else shared.field_starts.get(ids.ref(), [])
    return library.twml_group_batch(
        ids, values, row_splits, input_dim, groups, binary=binary, field_starts=starts
    )


def _input_dim(table: tf.Tensor, num_rows: int | None) -> tf.Tensor:
    shape = tf.raw_ops.VariableShape(input=table, out_type=tf.int64)
    with library.on_host():
        of_variable = shape[0]
        if num_rows is None:
            return of_variable
        # Not a constant. A cache may be a little larger than its table; the ops that take the
        # groups check ids beyond the table.
        return tf.maximum(of_variable, tf.constant(num_rows, tf.int64))


def _shared_groups() -> _SharedGroups | None:
    """The groups of the graph that is being built; None if its ops have to group by themselves."""
    if tf.executing_eagerly() or not library.is_op_library:
        return None
    graph = tf.compat.v1.get_default_graph()
    if in_version_1_control_flow(graph):
        return None
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, _SharedGroups())
    found: _SharedGroups = getattr(graph, _ATTRIBUTE)
    return found
