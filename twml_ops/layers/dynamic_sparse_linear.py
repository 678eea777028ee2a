"""A sparse linear layer whose rows belong to ids of an unbounded space."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops._keras import KERAS_3, serializable
from twml_ops.layers._arguments import refuse_constraint
from twml_ops.layers._weights import add_table
from twml_ops.layers.dynamic_lookup import DynamicLookup
from twml_ops.layers.sparse_linear import SparseLinear
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable
from twml_ops.ops.dynamic_lookup import Eviction
from twml_ops.ops.reset_rows import DynamicRows, reset_rows

_MAX_INITIAL_ROWS = 4096


@serializable
class DynamicSparseLinear(tf.keras.layers.Layer):
    """`SparseLinear` for 64-bit ids, in a table of bounded size without collisions.

    A `DynamicLookup` gives the rows of the kernel [capacity, units] to ids. Where a row gets a new
    id, its weights become the weights of an initial row of the kernel (row r takes initial row r
    mod 4,096), and the optimizer sets the row of its slots to their initial values.

    A row that was looked up in training keeps its id until the next update of the kernel, however
    many lookups come before it, so a gradient never reaches the row's next id. With an optimizer
    that is not of `twml_ops.optimizers` no row gets a new id: without a free row, ids share row 0.

    Args:
        units: D, width of the output.
        capacity: number of rows of the kernel. Row 0 is shared by all ids without a row.
        min_count: see `DynamicLookup`.
        eviction: see `DynamicLookup`.
        max_age: see `DynamicLookup`.
        sketch_width: see `DynamicLookup`.
        seed: see `DynamicLookup`.
        activation: Keras activation, applied last; None: linear.
        use_bias: whether to add a bias [units].
        kernel_initializer: Keras initializer of the kernel [capacity, units].
        bias_initializer: Keras initializer of the bias.
        kernel_dtype: "float32" or "bfloat16"; see `SparseLinear`.
        kernel_regularizer: see `SparseLinear`.
        bias_regularizer: see `SparseLinear`.
        bias_constraint: see `SparseLinear`.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        units: int,
        capacity: int,
        min_count: int = 1,
        eviction: Eviction = "lru",
        max_age: int = 0,
        sketch_width: int | None = None,
        seed: int = 0,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_dtype: Any = "float32",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        refuse_constraint("kernel_constraint", kwargs)
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        self.lookup = DynamicLookup(
            capacity,
            min_count,
            eviction,
            max_age,
            sketch_width=sketch_width,
            seed=seed,
            name="lookup",
            dtype=self.dtype_policy if hasattr(self, "dtype_policy") else None,
        )
        self.linear = SparseLinear(
            units,
            self.lookup.capacity,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_dtype=kernel_dtype,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            bias_constraint=bias_constraint,
            name="linear",
            dtype=self.dtype_policy if hasattr(self, "dtype_policy") else None,
        )
        self.units, self.capacity = self.linear.units, self.lookup.capacity
        self.supports_jit = False  # the ops cannot be compiled by XLA

    def build(self, input_shape: Any = None) -> None:
        """Creates the state of the lookup, the kernel and the bias."""
        place = placement.current_placement()
        if isinstance(place, placement.LargeTables):  # its rows are reset, so they are in memory
            place = placement.REPLICATED
        with placement.placement_scope(place):
            self.lookup.build(input_shape)
            self.linear._path = f"{self.name}/{self.linear.name}" if KERAS_3 else self.name
            self.linear.build(input_shape)
        kernel = self.linear.kernel
        rows = min(self.capacity, _MAX_INITIAL_ROWS)

        def initial(shape: Any, dtype: Any = None, **_: Any) -> tf.Tensor:
            del shape, dtype
            return tf_variable(kernel).value()[:rows]

        shape, remote = (rows, self.units), self.lookup._remote
        values: Any = initial if remote is None else "zeros"  # until the servers begin
        self._initial_rows = add_table(
            self, "initial_rows", shape, values, self.linear.kernel_dtype, trainable=False
        )
        self._stale_slots = add_table(
            self, "stale_slots", (self.capacity,), "zeros", "bool", trainable=False
        )
        self._updated_at = add_table(self, "updated_at", (), "zeros", "int64", trainable=False)
        if remote is not None:
            if self.linear.kernel_regularizer is not None:
                raise ValueError(
                    f"layer {self.name!r} has its table on parameter servers, so it needs "
                    f"kernel_regularizer None, got {self.linear.kernel_regularizer!r}"
                )
            remote.attach(kernel, self._initial_rows, self._updated_at)
        super().build(None)

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Multiplies a batch by the rows of its ids.

        Args:
            inputs: a batch in any batch form, B rows, with any 64-bit ids.
            training: whether the ids are counted and new ones get rows.

        Returns:
            [B, units], of the compute dtype.

        Raises:
            ValueError: see `DynamicLookup`.
            NotImplementedError: see `DynamicLookup`.
        """
        if self.lookup._remote is not None:  # the servers reset the rows
            return self.linear(self.lookup(inputs, training=training), training=training)
        learns = training is not None and training is not False
        kernel, updated_at = tf_variable(self.linear.kernel), tf_variable(self._updated_at)
        waits = learns and self.linear.trainable  # without updates no gradient waits
        batch, reset, rebuild = self.lookup.lookup(
            inputs, training, updated_at.read_value() if waits else None
        )
        if learns:
            header = tf_variable(self.lookup._header)
            dynamic = DynamicRows(tf_variable(self._stale_slots), header, updated_at)
            with library.on_host():
                rows = reset % tf.constant(self._initial_rows.shape[0], tf.int64)
                initial = tf.gather(tf_variable(self._initial_rows), rows)
                reset_rows(kernel, reset, initial, dynamic)
        return self.linear(rebuild(batch, self.capacity), training=training)

    def save_own_variables(self, store: Any) -> None:
        """Writes the state of the layer itself to a `.keras` or `.weights.h5` file."""
        if self.lookup._remote is not None:
            self.lookup._remote.pull_updated_at()
        super().save_own_variables(store)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """[B, units]."""
        return self.linear.compute_output_shape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        lookup, linear = self.lookup.get_config(), self.linear.get_config()
        names = ("capacity", "min_count", "eviction", "max_age", "sketch_width")
        of_linear = ("units", "activation", "use_bias", "kernel_initializer", "bias_initializer")
        penalties = ("kernel_regularizer", "bias_regularizer", "bias_constraint")
        return {
            **config,
            **{name: lookup[name] for name in (*names, "seed")},
            **{name: linear[name] for name in (*of_linear, *penalties, "kernel_dtype")},
        }
