"""Many tables in one layer, multiplied in one op call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import tensorflow as tf

from twml_ops import placement
from twml_ops._batch import SparseBatch, parse
from twml_ops._keras import serializable
from twml_ops.layers._arguments import check_choice
from twml_ops.layers._tables import OUT_OF_RANGE, LookupTable, TableLayer, wrapped
from twml_ops.layers._weights import add_table
from twml_ops.ops._library import library
from twml_ops.placement.sharded import NotCheckpointable
from twml_ops.placement.tiered import Tiered, storage_of, storage_placement


@dataclasses.dataclass(frozen=True)
class SparseTable:
    """One table of a `GroupedSparseLinear`.

    Attributes:
        input_dim: N, size of its id space.
        units: D, width of its rows.
        initializer: Keras initializer of the table [N, D].
        dtype: "float32", or "bfloat16" as for `SparseLinear`'s `kernel_dtype`.
        storage: None: the table is in memory. `Tiered`: its rows are in a file, and some of them in
            memory.
        regularizer: Keras regularizer of the table, as `SparseLinear`'s `kernel_regularizer`.
        out_of_range: "error" or "wrap", as of `SparseLinear`.

    Raises:
        ValueError: An attribute is out of range.
    """

    input_dim: int
    units: int
    initializer: Any = "glorot_uniform"
    dtype: Literal["float32", "bfloat16"] = "float32"
    storage: Tiered | None = None
    regularizer: Any = None
    out_of_range: Literal["error", "wrap"] = "error"

    def __post_init__(self) -> None:
        for name in ("input_dim", "units"):
            value = getattr(self, name)
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f'dtype must be "float32" or "bfloat16", got {self.dtype!r}')
        check_choice("out_of_range", self.out_of_range, OUT_OF_RANGE)
        object.__setattr__(self, "storage", storage_of(self.storage))


@serializable
class GroupedSparseLinear(TableLayer):
    """`x @ table` for many sparse features at once, with separate or shared tables.

    The layer takes a dict feature → batch, each in any batch form, and returns a dict feature → [B,
    units of its table]. All products are one op call, so the cost of dozens of small tables is
    little more than their memory traffic. To train tables with different optimizers use
    `twml_ops.optimizers.CompositeOptimizer`; the variable of a table has the table's name.

    Args:
        tables: Name → `SparseTable`.
        features: Feature → name of its table; several features may share one. None: each table has
            one feature, with the name of the table.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: There are no tables, a feature has an unknown table, or a table has no feature.
            When called: `inputs` is not a dict of exactly the features.
        tf.errors.InvalidArgumentError: When called, an id is out of range, and the table's
            `out_of_range` is "error".
    """

    def __init__(
        self,
        tables: Mapping[str, SparseTable | Mapping[str, Any]],
        features: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        if not tables:
            raise ValueError("tables must name at least one table, got none")
        self.tables = {n: t if isinstance(t, SparseTable) else _table(t) for n, t in tables.items()}
        self.features = dict(features) if features is not None else {n: n for n in self.tables}
        unknown = sorted(set(self.features.values()) - set(self.tables))
        if unknown:
            raise ValueError(f"features must name tables of {sorted(self.tables)}, got {unknown}")
        unused = sorted(set(self.tables) - set(self.features.values()))
        if unused:
            raise ValueError(f"every table must have a feature, got none for {unused}")
        self.supports_jit = False  # the ops cannot be compiled by XLA
        self.kernels: dict[str, Any] = {}

    @property
    def table_variables(self) -> list[Any]:
        """The tables; see `TableLayer.table_variables`."""
        return list(self.kernels.values())

    def build(self, input_shape: Any = None) -> None:
        """Creates the tables."""
        del input_shape  # ids name the rows: the inputs' widths say nothing
        current = placement.current_placement()
        for name, table in self.tables.items():
            place = storage_placement(table.storage) if table.storage else current
            self.kernels[name] = place.create(
                partial(add_table, self, name, dtype=table.dtype),
                (table.input_dim, table.units),
                tf.keras.initializers.get(table.initializer),
                f"{self.name}/{name}",
                table.dtype,
            )
        if any(placement.placement_of(kernel).is_sharded for kernel in self.kernels.values()):
            self._whole_files_only = NotCheckpointable()
        # Checkpoints follow attributes, but in Keras 3 no dicts.
        for i, kernel in enumerate(self.kernels.values()):
            setattr(self, f"_kernel_{i}", kernel)
        super().build(None)

    def call(self, inputs: Mapping[str, Any], training: Any = None) -> dict[str, tf.Tensor]:
        """Multiplies the batch of each feature by its table.

        Args:
            inputs: Feature → batch in any batch form, all with B rows.
            training: False: the penalties of regularizers are left out.

        Returns:
            Feature → [B, units of its table], of the compute dtype.

        Raises:
            ValueError: `inputs` is not a dict of exactly the features, or a batch has no batch
                form.
        """
        if not isinstance(inputs, Mapping) or set(inputs) != set(self.features):
            got = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise ValueError(f"inputs must be a dict of {sorted(self.features)}, got {got}")
        found = [
            placement.placement_of(self.kernels[table]).looked_up(f"{self.name}/{feature}")
            for feature, table in self.features.items()
        ]
        missing = any(product is None for product in found)
        outputs = self._products(inputs, training) if missing else found
        cast = [tf.cast(output, self.compute_dtype) for output in outputs]
        return dict(zip(self.features, cast, strict=True))

    def _products(self, inputs: Mapping[str, Any], training: Any) -> list[tf.Tensor]:
        """The product of each feature."""
        kernels = [self.kernels[table] for table in self.features.values()]
        with library.on_host():
            batches = [self._rows_of(inputs[f], table) for f, table in self.features.items()]
            outputs = placement.grouped_sparse_linear(batches, kernels)
        if training is not False:
            for name, table in self.tables.items():
                if table.regularizer is not None:
                    named = zip(self.features.values(), batches, strict=True)
                    ids = tf.concat([batch.ids for of, batch in named if of == name], axis=0)
                    regularizer = tf.keras.regularizers.get(table.regularizer)
                    self._add_penalty(regularizer, ids, self.kernels[name])
        return outputs

    @property
    def lookup_tables(self) -> list[LookupTable]:
        """The tables "layer/table", for the features "layer/feature"."""
        return [
            LookupTable(
                f"{self.name}/{name}",
                self.kernels[name],
                (table.input_dim, table.units),
                tf.keras.initializers.get(table.initializer),
                tuple(f"{self.name}/{f}" for f, of in self.features.items() if of == name),
            )
            for name, table in self.tables.items()
        ]

    def lookup_rows(self, inputs: Mapping[str, Any]) -> dict[str, SparseBatch]:
        """The entries of each feature; see `TableLayer.lookup_rows`."""
        return {f"{self.name}/{f}": self._rows_of(inputs[f], t) for f, t in self.features.items()}

    def _ids_of_tables(self, inputs: Mapping[str, Any]) -> list[tuple[Any, tf.Tensor]]:
        return [
            (self.kernels[t], self._rows_of(inputs[f], t).ids) for f, t in self.features.items()
        ]

    def _rows_of(self, inputs: Any, name: str) -> Any:
        table = self.tables[name]
        return wrapped(parse(inputs)[0], table.input_dim, table.out_of_range)

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple[None, int]]:
        """Feature → [B, units]."""
        del input_shape  # the shapes of batch forms do not tell the number of rows
        return {f: (None, self.tables[table].units) for f, table in self.features.items()}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        tables = {}
        for name, table in self.tables.items():
            initializer = tf.keras.initializers.get(table.initializer)
            tables[name] = {
                "input_dim": table.input_dim,
                "units": table.units,
                "initializer": tf.keras.initializers.serialize(initializer),
                "dtype": table.dtype,
                "out_of_range": table.out_of_range,
                "regularizer": tf.keras.regularizers.serialize(
                    tf.keras.regularizers.get(table.regularizer)
                ),
                "storage": None if table.storage is None else table.storage.get_config(),
            }
        return {**config, "tables": tables, "features": self.features}


def _table(config: Mapping[str, Any]) -> SparseTable:
    return SparseTable(**config)
