"""Copies of tables, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.ops._tape import tf_variable
from twml_ops.placement.base import AddWeight, Placement, placement_of
from twml_ops.placement.tiered import TieredPlacement


class ZeroTables(Placement):
    """Tables in memory that begin with zeros, for models that get the weights of others.

    Random initial values of a large table would take its memory once more.
    """

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """See `Placement.create`."""
        return super().create(add, shape, tf.keras.initializers.Zeros(), name, dtype)


def copy_weights(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Copies weights, also between tables in memory and in files.

    Args:
        before: variables.
        after: as many variables of the same shapes; shapes of tables are of whole tables.
    """
    for source, target in zip(before, after, strict=True):
        from_place, to_place = placement_of(source), placement_of(target)
        if not isinstance(from_place, TieredPlacement):
            to_place.assign(target, from_place.read(source))
            continue
        begin = 0
        for piece in from_place.pieces(source):
            count = int(piece.shape[0])
            if isinstance(to_place, TieredPlacement):
                to_place.rows(target).write(begin, piece)
            else:
                tf_variable(target)[begin : begin + count].assign(piece)
            begin += count
