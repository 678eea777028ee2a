"""The placement of tables outside of the model, whose products are looked up by another system."""

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
    """The table is outside of the model, and `use_lookups` passes its products to the layer.

    Args:
        layer: The name of the layer.
        rows: Rows of the variable that represents the table in the model. 0: the model keeps no
            copy of the table. None: it keeps a whole copy.
    """

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
        """See `Placement.create`."""
        del dtype
        rows = shape[0] if self.rows is None else self.rows
        variable = add((rows, *shape[1:]), initializer if rows else "zeros")
        placement.set_placement(variable, ExternalLookup(name.rpartition("/")[0], self.rows))
        return variable

    def looked_up(self, feature: str) -> tf.Tensor | None:
        """See `Placement.looked_up`."""
        activations = _activations.get()
        return None if activations is None else activations.get(feature)

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement.sparse_linear`: multiplies with the model's copy of the table.

        Raises:
            ValueError: There is no copy of the table.
        """
        if table.shape[0]:
            return super().sparse_linear(entries, table)
        if not isinstance(placement.current_placement(), ExternalLookup):
            raise ValueError(
                f"the model has no copy of the table of layer {self.layer!r}: call the model in "
                "`with tpu.use_lookups(...)`"
            )
        # The model is being built, which needs shapes only.
        return tf.zeros(tf.stack([tf.shape(entries[2])[0] - 1, table.shape[1]]))


@contextlib.contextmanager
def external_tables() -> Iterator[None]:
    """In the `with` block, new layers have no tables and need looked-up products.

    For models in the scope of a `tf.distribute.TPUStrategy`, whose tables are in `TPUEmbedding`.

    Yields:
        Nothing.
    """
    with placement.placement_scope(ExternalLookup(rows=0)):
        yield


@contextlib.contextmanager
def use_lookups(activations: Mapping[str, tf.Tensor]) -> Iterator[None]:
    """In the `with` block, layers use looked-up products instead of multiplying.

    Args:
        activations: Maps the features of `feature_configs` to their products, float32 [B, units];
            the product of a `SparseLinear` is without bias and activation function.

    Yields:
        Nothing.
    """
    token = _activations.set(activations)
    try:
        yield
    finally:
        _activations.reset(token)
