"""Where tables are and how the replicas that train them agree.

A layer never asks which hardware or strategy it runs on: it asks its placement. An optimizer asks
the placement of the variable it updates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._tape import tf_variable
from twml_ops.placement import collectives, gradients
from twml_ops.placement.entries import CsrEntries

_ATTRIBUTE = "_twml_placement"
AddWeight = Callable[[Sequence[int], Any], Any]  # shape, initializer -> a layer's new variable


class Placement:
    """Every replica has the whole table; without replicas, that is the one table there is."""

    is_sharded = False
    supports_grouped_tables = (
        True  # tables of `GroupedSparseLinear` too; else they stay with their layer
    )

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """The variable that stands for a table of `shape`, made by `add`, and in charge of it."""
        del name, dtype  # `add` knows them
        return add(shape, initializer)

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """`ops.sparse_linear` on a table in charge: [B, D] of this replica's batch."""
        return ops.sparse_linear(*entries, table)

    def gather_entries(
        self, ids: tf.Tensor, values: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor] | None:
        """The entries [K] of all replicas' batches, for a state that every replica keeps alike.

        None where this batch is all there is.
        """
        if collectives.num_replicas() == 1:
            return None
        all_ids, all_values = collectives.gather_per_replica([ids, tf.stop_gradient(values)])
        return tf.concat(all_ids, axis=0), tf.concat(all_values, axis=0)

    def reduce_gradient(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """A variable's sparse gradient of all replicas, from this replica's."""
        return gradients.reduce_gradient(gradient)

    def read(self, variable: Any) -> tf.Tensor:
        """The whole table."""
        return tf.convert_to_tensor(variable)

    def assign(self, variable: Any, table: Any) -> None:
        """Makes `table` the whole table."""
        variable.assign(tf.cast(table, variable.dtype))


REPLICATED = Placement()
_CURRENT: ContextVar[Placement] = ContextVar("placement", default=REPLICATED)


def current_placement() -> Placement:
    """The placement of tables that are made now, unless their layer asks for another."""
    return _CURRENT.get()


@contextlib.contextmanager
def placement_scope(placement: Placement) -> Iterator[None]:
    """In the block, and this thread, new tables get `placement`."""
    token = _CURRENT.set(placement)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def placement_of(variable: Any) -> Placement:
    """The placement in charge of `variable`."""
    return getattr(tf_variable(variable), _ATTRIBUTE, REPLICATED)


def grouped_sparse_linear(batches: Sequence[CsrEntries], tables: Sequence[Any]) -> list[tf.Tensor]:
    """The product [B, D] of each batch with its table: one op for all tables that are here."""
    if all(placement_of(t) is REPLICATED for t in tables):
        return ops.grouped_sparse_linear(batches, tables)
    return [placement_of(t).sparse_linear(b, t) for b, t in zip(batches, tables, strict=True)]


def set_placement(variable: Any, placement: Placement) -> None:
    """Puts `placement` in charge of `variable`."""
    setattr(tf_variable(variable), _ATTRIBUTE, placement)


def in_replica_group() -> bool:
    """Whether the running code is one of several replicas that exchange gradients here."""
    return collectives.num_replicas() > 1
