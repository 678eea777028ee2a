"""One vector for each field of an example, all fields in one table and one lookup."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from twml_ops import placement
from twml_ops._batch import SparseBatch
from twml_ops._keras import as_declared, serializable
from twml_ops.layers._arguments import check_choice, check_positive_integer, refuse_constraint
from twml_ops.layers._field_table import FieldTable, join_segments
from twml_ops.layers._tables import OUT_OF_RANGE, LookupTable, TableLayer
from twml_ops.layers._weights import add_table, copied
from twml_ops.ops._library import library
from twml_ops.ops._tape import device_scope_of
from twml_ops.placement.sharded import NotCheckpointable
from twml_ops.placement.tiered import Tiered, storage_of, storage_placement

Combiner = Literal["sum", "mean", "sqrtn"]
_COMBINERS = ("sum", "mean", "sqrtn")


@serializable
class FieldEmbedding(TableLayer):
    """Embeds the fields of a batch: [B, F] ids and G ragged bags of ids → [B, F + G, units].

    The rows of all fields are one table, so there is one lookup op, and one sparse update with
    the optimizers of `twml_ops.optimizers`. Fields of different widths have a table for each width,
    still with one lookup op (mixed dimensions, Ginart et al. 2021). Row 0 of a field stands for a
    missing value (a negative id); other ids take the row 1 + id of their field. They are rows of
    `CategoryRows` or positions in a vocabulary, below num_rows - 1, or hashes with
    `out_of_range="wrap"`.

    Args:
        num_rows: rows of each field, at least 2: an integer for every field, first the fields of
            the matrix, then the bags; or the integer alone, for a single field. For hashes take a
            few times the number of categories; for the rows of a `CategoryRows` its `num_rows`.
        units: D, width of the vectors: an integer, or one for each field. Then the output is a list
            of [B, units of the field], unless there are `projected_units`.
        pooling: None: a vector for each field, for layers that let fields interact. "sum", "mean"
            or "sqrtn" (the sum divided by the square root of their number): one vector [B, units]
            of all fields.
        bag_combiner: how the vectors of a bag become one: "sum", "mean" (divided by the sum of the
            absolute weights, which is that of the weights unless some are negative; so the mean is
            not longer than the longest vector) or "sqrtn" (divided by the square root of the sum of
            their squares). A bag that is empty or has weights of 0 alone is 0.
        num_bags: G, how many of the fields are bags.
        embeddings_initializer: the initializer of the table [sum(num_rows), units].
        kernel_dtype: "float32", or "bfloat16" as of `SparseLinear`.
        projected_units: None, or the width to which each field's vectors are multiplied by a matrix
            of the field [its units, projected_units], without bias; it takes the place of `units`
            in the shape of the output.
        l2: strength of the L2 regularization of the vectors that are looked up, not negative. It
            adds to their gradient that of `l2` times the mean over the rows of the batch of the sum
            of the squares of their vectors. Rows that a batch does not touch are not changed, and
            the loss that Keras reports does not contain the penalty. With loss scales and replicas
            the strength is the same, if the training adds the `losses` of the model to its loss,
            as `fit` does; this layer adds a loss of 0.
        storage: None: the tables are in memory. `Tiered`: their rows are in files, and some of them
            in memory.
        embeddings_regularizer: Keras regularizer. Its penalty is that of the rows that the batch
            names, each once, whereas `l2` counts a row as often as it is looked up; see
            `kernel_regularizer` of `SparseLinear`. An `embeddings_constraint` is refused.
        out_of_range: "error": an id of a field that is not below num_rows - 1 is an error. "wrap":
            an id takes the row 1 + id mod (num_rows - 1), so that ids may be hashes; two ids of a
            field may then share a row (Weinberger et al. 2009). Negative ids are missing values in
            both cases. Files that were saved without it wrap.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range, or, when called, other inputs.
    """

    def __init__(
        self,
        num_rows: int | Sequence[int],
        units: int | Sequence[int],
        pooling: Combiner | None = None,
        bag_combiner: Combiner = "mean",
        num_bags: int = 0,
        embeddings_initializer: Any = "uniform",
        kernel_dtype: Literal["float32", "bfloat16"] = "float32",
        projected_units: int | None = None,
        l2: float = 0.0,
        storage: Tiered | None = None,
        embeddings_regularizer: Any = None,
        out_of_range: Literal["error", "wrap"] = "error",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # weights of bags keep float32 in mixed precision
        refuse_constraint("embeddings_constraint", kwargs)
        super().__init__(**kwargs)
        if isinstance(num_rows, int | np.integer):
            num_rows = [int(num_rows)]
        self.num_rows = [int(n) for n in num_rows]
        if not self.num_rows or min(self.num_rows) < 2:
            raise ValueError(f"num_rows must be integers of at least 2, got {num_rows!r}")
        one_width = not isinstance(units, Sequence)
        widths = [units] * len(self.num_rows) if not isinstance(units, Sequence) else [*units]
        if len(widths) != len(self.num_rows):
            raise ValueError(
                f"units must be an integer or {len(self.num_rows)} of them, got {units!r}"
            )
        widths = [check_positive_integer("units", width) for width in widths]
        if projected_units is not None:
            projected_units = check_positive_integer("projected_units", projected_units)
        elif pooling is not None and not one_width:
            raise ValueError(
                "pooling needs vectors of one width: an integer units, or projected_units"
            )
        if pooling is not None and pooling not in _COMBINERS:
            raise ValueError(f"pooling must be None or one of {_COMBINERS}, got {pooling!r}")
        if bag_combiner not in _COMBINERS:
            raise ValueError(f"bag_combiner must be one of {_COMBINERS}, got {bag_combiner!r}")
        if not 0 <= num_bags <= len(self.num_rows):
            raise ValueError(
                f"num_bags must be in [0, {len(self.num_rows)}], the number of fields, got "
                f"{num_bags!r}"
            )
        if kernel_dtype not in ("float32", "bfloat16"):
            raise ValueError(f'kernel_dtype must be "float32" or "bfloat16", got {kernel_dtype!r}')
        if not 0 <= l2 < float("inf"):
            raise ValueError(f"l2 must be finite and not negative, got {l2!r}")
        check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
        self.out_of_range = out_of_range
        self.units: int | list[int] = widths[0] if one_width else widths
        self.projected_units = projected_units
        self.pooling = pooling
        self.bag_combiner = bag_combiner
        self.num_bags = int(num_bags)
        self.embeddings_initializer = tf.keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = tf.keras.regularizers.get(embeddings_regularizer)
        self.kernel_dtype = kernel_dtype
        self.l2 = float(l2)
        self.storage = storage_of(storage)
        self.supports_jit = False  # the ops are no XLA ops
        self._tables = [
            FieldTable(
                width,
                [f for f, w in enumerate(widths) if w == width],
                self.num_rows,
                self.num_fields,
                bag_combiner,
                out_of_range,
            )
            for width in sorted(set(widths))
        ]
        self.embeddings: Any = None

    @property
    def tables(self) -> list[FieldTable]:
        """The tables, one for each width of vectors."""
        return list(self._tables)

    @property
    def table_variables(self) -> list[Any]:
        """The variables of `tables`; see `TableLayer.table_variables`."""
        return [table.variable for table in self._tables if table.variable is not None]

    @property
    def num_fields(self) -> int:
        """F, the fields of the matrix, without the bags."""
        return len(self.num_rows) - self.num_bags

    def build(self, input_shape: Any = None) -> None:
        """Creates the tables."""
        del input_shape
        total = sum(table.num_rows for table in self._tables)
        for table in self._tables:
            place = storage_placement(self.storage, (table.num_rows, total))
            name = "embeddings" if len(self._tables) == 1 else f"embeddings_{table.units}"
            table.variable = place.create(
                partial(add_table, self, name, dtype=self.kernel_dtype),
                (table.num_rows, table.units),
                copied(self.embeddings_initializer),
                f"{self.name}/{name}",
                self.kernel_dtype,
            )
            setattr(self, name, table.variable)  # checkpoints follow attributes
            if self.projected_units is not None:
                shape = (len(table.fields), table.units, self.projected_units)
                scale = 1 / math.sqrt(table.units)
                name = f"projection_{table.units}"
                table.projection = self.add_weight(
                    name=name,
                    shape=shape,
                    initializer=tf.keras.initializers.RandomUniform(-scale, scale),
                )
                setattr(self, f"_{name}", table.projection)
        if any(placement.placement_of(t.variable).is_sharded for t in self._tables):
            self._whole_files_only = NotCheckpointable()
        super().build(None)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Looks up one batch.

        Args:
            inputs: ids, an integer tensor [B, F]; with bags a list of it (if F is not 0) and, for
                each bag, a ragged tensor of ids or a pair of them (ids, weights).
            training: False: the penalty of `embeddings_regularizer` is left out.

        Returns:
            [B, F + G, units], or [B, units] if there is a `pooling`, of the compute dtype; of
            `units` for each field, without `projected_units`, a list of [B, units of the field].
        """
        vectors = self._looked_up()
        if vectors is None:
            vectors = self._products(inputs, training)
        with device_scope_of(vectors[0]):
            if self.l2:
                for i, v in enumerate(vectors):
                    vectors[i], loss = _regularized(v, self.l2)
                    self.add_loss(loss)
        vectors = [tf.cast(v, self.compute_dtype) for v in vectors]
        if self.projected_units is not None:
            vectors = [
                tf.einsum("bfd,fdp->bfp", v, tf.cast(table.projection, self.compute_dtype))
                for v, table in zip(vectors, self._tables, strict=True)
            ]
        elif not isinstance(self.units, int):
            return [v for _, v in sorted(self._by_field(vectors), key=lambda pair: pair[0])]
        joined = vectors[0]
        if len(vectors) > 1:
            order = np.argsort(np.concatenate([table.fields for table in self._tables]))
            joined = tf.gather(tf.concat(vectors, axis=1), order, axis=1)
        if self.pooling is not None:
            joined = joined if self._pools_at_once else tf.reduce_sum(joined, axis=1)
            power = {"sum": 0.0, "mean": 1.0, "sqrtn": 0.5}[self.pooling]
            joined /= float(len(self.num_rows)) ** power
        return joined

    def entries(self, inputs: Any) -> SparseBatch:
        """The batch whose product with the only table is what `vectors_of` takes.

        Args:
            inputs: as of `call`.

        Returns:
            A segment for each vector. The layer has vectors of one width and no `pooling`.
        """
        return self._segments(inputs, False)[0]

    def vectors_of(self, product: tf.Tensor) -> tf.Tensor:
        """The vectors that `call` returns, without the loss of 0 of `l2`, from a product.

        Args:
            product: float32 [segments, units], of `entries` and the only table.

        Returns:
            [B, F + G, units], of the compute dtype.
        """
        vectors = self._tables[0].stacked(product)
        if self.l2:
            vectors, _ = _regularized(vectors, self.l2)
        return tf.cast(vectors, self.compute_dtype)

    @property
    def _pools_at_once(self) -> bool:
        """Whether the lookup adds up the vectors of all fields, which need not be known."""
        at_once = self.pooling is not None and not self.num_bags and not self.l2
        return at_once and self.projected_units is None

    def _products(self, inputs: Any, training: Any) -> list[tf.Tensor]:
        """The vectors of each table: [B, its fields, units], or if pooled at once [B, units]."""
        with library.on_host():
            batches = self._segments(inputs, self._pools_at_once)
            variables = [table.variable for table in self._tables]
            if len(batches) == 1:
                place = placement.placement_of(variables[0])
                vectors = [place.sparse_linear(batches[0], variables[0])]
            else:
                vectors = placement.grouped_sparse_linear(batches, variables)
        if self.embeddings_regularizer is not None and training is not False:
            for batch, variable in zip(batches, variables, strict=True):
                self._add_penalty(self.embeddings_regularizer, batch.ids, variable)
        if self._pools_at_once:
            return vectors
        with device_scope_of(vectors[0]):
            return [table.stacked(v) for v, table in zip(vectors, self._tables, strict=True)]

    def _looked_up(self) -> list[tf.Tensor] | None:
        """The same as `_products`, if another system has looked up all fields."""
        vectors = []
        for table in self.lookup_tables:
            place = placement.placement_of(table.variable)
            found = [place.looked_up(feature) for feature in table.features]
            if any(product is None for product in found):
                return None
            vectors.append(found[0] if self._pools_at_once else tf.stack(found, axis=1))
        return vectors

    @property
    def lookup_tables(self) -> list[LookupTable]:
        """The table "layer", or "layer/embeddings_WIDTH" of each width.

        Its features are "layer/field_NUMBER", or "layer" if the sum of all fields is looked up.
        """
        one = len(self._tables) == 1
        return [
            LookupTable(
                self.name if one else f"{self.name}/embeddings_{table.units}",
                table.variable,
                (table.num_rows, table.units),
                self.embeddings_initializer,
                (self.name,)
                if self._pools_at_once
                else tuple(f"{self.name}/field_{field}" for field in table.fields),
            )
            for table in self._tables
        ]

    def lookup_rows(self, inputs: Any) -> dict[str, SparseBatch]:
        """The row of each field, or rows and weights; see `TableLayer.lookup_rows`."""
        if self._pools_at_once:
            return {self.name: self._segments(inputs, True)[0]}
        found: dict[str, SparseBatch] = {}
        for table, named in zip(self._tables, self.lookup_tables, strict=True):
            parts = table.parts(*self._split(inputs), pooled=False)
            found.update(zip(named.features, table.by_field(parts), strict=True))
        return found

    def _ids_of_tables(self, inputs: Any) -> list[tuple[Any, tf.Tensor]]:
        batches = self._segments(inputs, False)
        return [(t.variable, b.ids) for t, b in zip(self._tables, batches, strict=True)]

    def _by_field(self, vectors: Sequence[tf.Tensor]) -> Iterator[tuple[int, tf.Tensor]]:
        """(field, its vectors [B, units]) of the vectors of all tables."""
        for table, stacked in zip(self._tables, vectors, strict=True):
            yield from zip(table.fields, tf.unstack(stacked, len(table.fields), 1), strict=True)

    def _segments(self, inputs: Any, pooled: bool) -> list[SparseBatch]:
        """One segment for each vector of each table, as `FieldTable.parts` has them."""
        ids, bags = self._split(inputs)
        return [join_segments(table.parts(ids, bags, pooled)) for table in self._tables]

    def _split(self, inputs: Any) -> tuple[Any, list[Any]]:
        """The matrix, if there is one, and the bags."""
        parts = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        expected = (self.num_fields > 0) + self.num_bags
        if len(parts) != expected:
            raise ValueError(f"inputs must be {expected} tensors or pairs, got {len(parts)}")
        if not self.num_fields:
            return None, parts
        ids = as_declared(parts[0], tf.int64)
        if ids.shape.rank != 2 or ids.shape[1] != self.num_fields or not ids.dtype.is_integer:
            raise ValueError(
                f"ids must be integers [B, {self.num_fields}], got {ids.dtype.name} {ids.shape}"
            )
        return ids, parts[1:]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[B, F + G, units], [B, units], or a list of [B, units of the field]."""
        shape = input_shape
        while (
            isinstance(shape, (list, tuple))
            and shape
            and isinstance(shape[0], (list, tuple, tf.TensorShape))
        ):
            shape = shape[0]
        width = self.projected_units or self.units
        if not isinstance(width, int):
            return [(shape[0], units) for units in width]
        fields = () if self.pooling is not None else (len(self.num_rows),)
        return (shape[0], *fields, width)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FieldEmbedding:
        """The layer of a configuration. In one that is older than `out_of_range`, ids wrap."""
        return cls(**{"out_of_range": "wrap", **config})

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "num_rows": list(self.num_rows),
            "units": self.units,
            "pooling": self.pooling,
            "bag_combiner": self.bag_combiner,
            "num_bags": self.num_bags,
            "embeddings_initializer": tf.keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": tf.keras.regularizers.serialize(self.embeddings_regularizer),
            "out_of_range": self.out_of_range,
            "kernel_dtype": self.kernel_dtype,
            "projected_units": self.projected_units,
            "l2": self.l2,
            "storage": None if self.storage is None else self.storage.get_config(),
        }


def _regularized(vectors: tf.Tensor, l2: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The vectors [B, ...] unchanged, with the gradient of an L2 penalty, and a loss that is 0.

    The gradient of that loss is the factor by which the training multiplies the losses of a layer:
    a loss scale, or one divided by the number of replicas. It is 0 where they are left out.
    """

    @tf.custom_gradient
    def regularize(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
            rows = tf.cast(tf.maximum(tf.shape(x)[0], 1), x.dtype)
            factor = tf.cast(tf.where(tf.equal(factor, 0), tf.ones_like(factor), factor), x.dtype)
            return dy + 2 * l2 / rows * factor * x

        loss = tf.zeros([], tf.keras.backend.floatx())
        return (tf.identity(x), loss), gradient

    result: tuple[tf.Tensor, tf.Tensor] = regularize(vectors)
    return result
