"""Tables that are not in the model: another part of the system looks their rows up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops.placement.entries import CsrEntries

_activations: ContextVar[Mapping[str, tf.Tensor] | None] = ContextVar("activations", default=None)


class ExternalLookup(placement.Placement):
    """The variable in the model stands for a table whose product is handed in, see `use_lookups`.

    Args:
        layer: whose product it is.
        rows: of the variable; 0: the model keeps no copy of the table. None: all.
    """

    supports_grouped_tables = False

    def __init__(self, layer: str = "", rows: int | None = None) -> None:
        self.layer = layer
        self.rows = rows

    def create(
        self,
        add: placement.AddWeight,
        shape: Sequence[int],
        initializer: Any,
        name: str,
        dtype: Any,
    ) -> Any:
        """See `Placement`."""
        del dtype
        rows = shape[0] if self.rows is None else self.rows
        variable = add((rows, *shape[1:]), initializer if rows else "zeros")
        placement.set_placement(variable, ExternalLookup(name.rpartition("/")[0], self.rows))
        return variable

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement`: what was handed in; without that, the product with the own copy."""
        handed_in = _activations.get()
        if handed_in is not None and self.layer in handed_in:
            return handed_in[self.layer]
        if table.shape[0]:
            return super().sparse_linear(entries, table)
        if not isinstance(placement.current_placement(), ExternalLookup):
            raise ValueError(
                f"the table of {self.layer!r} is elsewhere: call the model in "
                "`tpu.use_lookups(...)`"
            )
        # A model is being made, and asked for shapes only.
        return tf.zeros(tf.stack([tf.shape(entries[2])[0] - 1, table.shape[1]]))


@contextlib.contextmanager
def external_tables() -> Iterator[None]:
    """Models made in the block keep no tables: their `SparseLinear`s take looked-up products.

    For models in the scope of a `tf.distribute.TPUStrategy`, whose tables `TPUEmbedding` has.
    """
    with placement.placement_scope(ExternalLookup(rows=0)):
        yield


@contextlib.contextmanager
def use_lookups(activations: Mapping[str, tf.Tensor]) -> Iterator[None]:
    """In the block the layers named in `activations` take those for their product.

    Args:
        activations: name of the layer -> float32 [B, units], without bias and activation function.
    """
    token = _activations.set(activations)
    try:
        yield
    finally:
        _activations.reset(token)
