"""The sparse linear layer: a dense layer whose input is a very sparse batch."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from twml_ops import placement
from twml_ops._batch import SparseBatch, parse
from twml_ops._keras import no_autocast, serializable
from twml_ops.layers._arguments import check_choice, refuse_constraint
from twml_ops.layers._tables import OUT_OF_RANGE, LookupTable, TableLayer, wrapped
from twml_ops.layers._weights import add_table
from twml_ops.ops._library import library
from twml_ops.ops._tape import device_scope_of
from twml_ops.placement.device import device_placement
from twml_ops.placement.entries import entries_of_shard
from twml_ops.placement.sharded import NotCheckpointable, sharded_placement
from twml_ops.placement.tiered import Tiered, storage_of, storage_placement


@serializable
class SparseLinear(TableLayer):
    """`activation(x @ kernel + bias)` for a sparse x [B, input_dim]; the output is [B, units].

    The layer takes any batch form: a `tf.SparseTensor`; a pair of `tf.RaggedTensor` (ids, values)
    or one ragged tensor of ids; a padded pair (ids, values) with id -1 as padding. It reads only
    the kernel rows that the batch names. The gradient by the kernel is sparse, and the optimizers
    of `twml_ops.optimizers` update only those rows. The gradient by the values reads the kernel
    when it is computed, so compute it before the kernel is updated (see `ops.sparse_linear`).

    Args:
        units: D, width of the output.
        input_dim: N, size of the id space. For ids outside of [0, N) see `out_of_range`.
        activation: Keras activation, applied last; None: linear.
        use_bias: Whether to add a bias [units].
        kernel_initializer: Keras initializer of the kernel [input_dim, units].
        bias_initializer: Keras initializer of the bias.
        num_partitions: P, number of variables into which the kernel is split. The result is the
            same for any P.
        partition_axis: "row": partition p has the ids with id mod P = p, and partial sums are
            added. "column": partition p has the p-th block of units / P columns, and results are
            concatenated; P must divide `units`.
        kernel_dtype: "float32", or "bfloat16", which halves memory and traffic. Sums are float32.
            The optimizers of this package round updates stochastically, so that small ones are not
            lost; their slots are float32.
        placement: "auto": every replica of a `tf.distribute.MirroredStrategy` has the whole table,
            in the memory of the host. "host": the same, also within a `placement_scope`. "device":
            in the memory of the GPU, if there is one; this needs the library of CUDA kernels.
            "sharded": each of its k replicas has input_dim / k rows, and they exchange ids and
            sums; without replicas this is the same as "auto". A sharded layer can be saved in
            .keras and .weights.h5 files but not in checkpoints, and its optimizer must not clip by
            norm.
        storage: None: the kernel is in memory. `Tiered`: its rows, with the optimizer's slots, are
            in a file, and some of them in memory.
        kernel_regularizer: Keras regularizer. Its penalty is that of the kernel rows that the batch
            names, each once; the loss contains it except in inference. It costs a second lookup,
            and the update is not fused with the backward pass. It needs a kernel in memory with the
            default placement. A `kernel_constraint` is refused, since it is for all rows.
        bias_regularizer: Keras regularizer of the bias.
        bias_constraint: Keras constraint of the bias.
        out_of_range: "error": an id outside of [0, N) is an error. "wrap": an id stands for id mod
            N, so ids may be hashes.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range, or the input has no batch form.
        tf.errors.InvalidArgumentError: When called, an id is out of range and `out_of_range` is
            "error".
    """

    def __init__(
        self,
        units: int,
        input_dim: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        num_partitions: int = 1,
        partition_axis: Literal["row", "column"] = "row",
        kernel_dtype: Literal["float32", "bfloat16"] = "float32",
        placement: Literal["auto", "host", "device", "sharded"] = "auto",
        storage: Tiered | None = None,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        bias_constraint: Any = None,
        out_of_range: Literal["error", "wrap"] = "error",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        refuse_constraint("kernel_constraint", kwargs)
        super().__init__(**kwargs)
        for name, value in (
            ("units", units),
            ("input_dim", input_dim),
            ("num_partitions", num_partitions),
        ):
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if partition_axis not in ("row", "column"):
            raise ValueError(f'partition_axis must be "row" or "column", got {partition_axis!r}')
        if kernel_dtype not in ("float32", "bfloat16"):
            raise ValueError(f'kernel_dtype must be "float32" or "bfloat16", got {kernel_dtype!r}')
        if partition_axis == "column" and units % num_partitions:
            raise ValueError(f"num_partitions must divide units {units}, got {num_partitions}")
        if num_partitions > input_dim:
            raise ValueError(
                f"num_partitions must not exceed input_dim {input_dim}, got {num_partitions}"
            )
        if placement not in ("auto", "host", "device", "sharded"):
            raise ValueError(
                f'placement must be "auto", "host", "device" or "sharded", got {placement!r}'
            )
        if placement == "sharded" and num_partitions > 1:
            raise ValueError(
                f'num_partitions must be 1 for placement="sharded", got {num_partitions}'
            )
        check_choice("out_of_range", out_of_range, OUT_OF_RANGE)
        self.out_of_range = out_of_range
        self.storage = storage_of(storage)
        if self.storage is not None and (num_partitions > 1 or placement in ("device", "sharded")):
            raise ValueError(
                'storage needs num_partitions 1 and placement "auto" or "host", got '
                f"{num_partitions} and {placement!r}"
            )
        self.units = int(units)
        self.input_dim = int(input_dim)
        self.activation = tf.keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = tf.keras.initializers.get(kernel_initializer)
        self.bias_initializer = tf.keras.initializers.get(bias_initializer)
        self.kernel_regularizer = tf.keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = tf.keras.regularizers.get(bias_regularizer)
        self.bias_constraint = tf.keras.constraints.get(bias_constraint)
        self.num_partitions = int(num_partitions)
        self.partition_axis = partition_axis
        self.kernel_dtype = kernel_dtype
        self.placement = placement
        self.supports_jit = False  # the ops cannot be compiled by XLA
        self.kernels: list[Any] = []
        self.bias: Any = None
        self._path: str | None = None  # of a layer within another one, as Keras names its weights

    @property
    def kernel(self) -> Any:
        """The kernel [input_dim, units] of a layer with one partition."""
        if len(self.kernels) != 1:
            raise AttributeError(f"the kernel is split into {self.num_partitions}: see `kernels`")
        return self.kernels[0]

    @property
    def table_variables(self) -> list[Any]:
        """The partitions of the kernel; see `TableLayer.table_variables`."""
        return list(self.kernels)

    def build(self, input_shape: Any = None) -> None:
        """Creates the partitions of the kernel, and the bias."""
        del input_shape  # the number of rows is `input_dim`
        partitions = range(self.num_partitions)
        if self.num_partitions == 1:
            self.kernels = [self._add_kernel("kernel", self.kernel_initializer, self.input_dim)]
        else:
            # Parts of one initial kernel, so that the split changes neither values nor scale.
            with tf.init_scope(), library.on_host():  # Keras may create the variables later
                whole = tf.convert_to_tensor(self.kernel_initializer((self.input_dim, self.units)))
                parts = [self._part(whole, p) for p in partitions]
            self.kernels = [self._add_partition(part, p) for p, part in enumerate(parts)]
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                dtype="float32",  # as the kernel, under every policy
                trainable=True,
                **no_autocast(),
            )
        super().build(None)

    def _part(self, whole: tf.Tensor, p: int) -> tf.Tensor:
        if self.partition_axis == "row":
            return whole[p :: self.num_partitions]
        return tf.split(whole, self.num_partitions, axis=1)[p]

    def _add_partition(self, initial: tf.Tensor, p: int) -> Any:
        def initializer(shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
            del shape, dtype, kwargs
            return tf.cast(initial, self.kernel_dtype)

        return self._add_kernel(f"kernel_{p}", initializer, *initial.shape)

    def _add_kernel(self, name: str, initializer: Any, rows: int, units: int | None = None) -> Any:
        def add(shape: Any, initializer: Any) -> Any:
            return add_table(self, name, shape, initializer, self.kernel_dtype)

        place = self._place(rows)
        shape = (rows, units or self.units)
        path = f"{self._path or self.name}/{name}"
        kernel = place.create(add, shape, initializer, path, self.kernel_dtype)
        if placement.placement_of(kernel).is_sharded:
            self._whole_files_only = NotCheckpointable()
        # Checkpoints follow attributes, but in Keras 3 no lists.
        setattr(self, f"_{name}", kernel)
        return kernel

    def _place(self, rows: int) -> placement.Placement:
        if self.storage is not None:
            return storage_placement(self.storage)
        if self.placement == "sharded":
            return sharded_placement(rows)
        if self.placement == "device":
            return device_placement()
        return placement.REPLICATED if self.placement == "host" else placement.current_placement()

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Multiplies a batch by the kernel.

        Args:
            inputs: A batch in any batch form, B rows.
            training: False: the penalty of the kernel is left out.

        Returns:
            [B, units], of the compute dtype.
        """
        found = placement.placement_of(self.kernels[0]).looked_up(self.name)
        products = [found] if found is not None else self._products(inputs, training)
        with device_scope_of(products[0]):
            by_row = self.partition_axis == "row"
            outputs = tf.add_n(products) if by_row else tf.concat(products, axis=1)
        if self.use_bias:
            outputs = tf.nn.bias_add(outputs, tf.convert_to_tensor(self.bias))
        outputs = tf.cast(outputs, self.compute_dtype)
        return outputs if self.activation is None else self.activation(outputs)

    def _products(self, inputs: Any, training: Any) -> list[tf.Tensor]:
        """The product of each partition."""
        with library.on_host():
            batch = self._rows_of(inputs)
            parts = [self._part_of(batch, p) for p in range(self.num_partitions)]
            products = [
                placement.placement_of(kernel).sparse_linear(part, kernel)
                for part, kernel in zip(parts, self.kernels, strict=True)
            ]
        if self.kernel_regularizer is not None and training is not False:
            for part, kernel in zip(parts, self.kernels, strict=True):
                self._add_penalty(self.kernel_regularizer, part[0], kernel)
        return products

    @property
    def lookup_tables(self) -> list[LookupTable]:
        """The kernel, for one feature with the name of the layer."""
        shape = (self.input_dim, self.units)
        return [LookupTable(self.name, self.kernel, shape, self.kernel_initializer, (self.name,))]

    def lookup_rows(self, inputs: Any) -> dict[str, SparseBatch]:
        """The entries of the batch; see `TableLayer.lookup_rows`."""
        return {self.name: self._rows_of(inputs)}

    def _ids_of_tables(self, inputs: Any) -> list[tuple[Any, tf.Tensor]]:
        return [(self.kernel, self._rows_of(inputs).ids)] if len(self.kernels) == 1 else []

    def _rows_of(self, inputs: Any) -> Any:
        return wrapped(parse(inputs)[0], self.input_dim, self.out_of_range)

    def _part_of(self, batch: Any, p: int) -> Any:
        """The entries that partition p multiplies."""
        if self.num_partitions == 1 or self.partition_axis == "column":
            return batch
        return entries_of_shard(batch, p, self.num_partitions)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """[B, units]."""
        shape = input_shape
        while (
            isinstance(shape, (list, tuple))
            and shape
            and isinstance(shape[0], (list, tuple, tf.TensorShape))
        ):
            shape = shape[0]
        return (shape[0], self.units)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        return {
            **config,
            "units": self.units,
            "input_dim": self.input_dim,
            "activation": tf.keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": tf.keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": tf.keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": tf.keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": tf.keras.regularizers.serialize(self.bias_regularizer),
            "bias_constraint": tf.keras.constraints.serialize(self.bias_constraint),
            "out_of_range": self.out_of_range,
            "num_partitions": self.num_partitions,
            "partition_axis": self.partition_axis,
            "kernel_dtype": self.kernel_dtype,
            "placement": self.placement,
            "storage": None if self.storage is None else self.storage.get_config(),
        }
