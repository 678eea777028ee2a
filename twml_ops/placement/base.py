"""The interface of placements, and the placement of each variable.

A layer does not know which hardware or strategy it runs on: it asks its placement. An optimizer
asks the placement of the variable that it updates.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._tape import tf_variable
from twml_ops.placement import collectives, replica_gradients
from twml_ops.placement.entries import CsrEntries

_ATTRIBUTE = "_twml_placement"
AddWeight = Callable[[Sequence[int], Any], Any]
"""A function (shape, initializer) -> variable by which a layer adds a weight to itself."""


@dataclasses.dataclass(frozen=True, eq=False)
class ProductModule:
    """What a layer computes of a product, which a placement may compute where the table is.

    Attributes:
        function: (the product float32 [S, D], the values of the weights) -> float32 [B, C]. It
            depends on nothing else.
        weights: The dense weights of the layer, Keras variables, in the order of `function`.
    """

    function: Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor]
    weights: Sequence[Any]


class Placement:
    """Every replica has the whole table. Without replicas, that is the only copy.

    This is the default and the base class of all other placements.

    Attributes:
        is_sharded: Whether a variable in this process holds only some of the table's rows or
            columns.
        in_file: Whether the rows are in a file, and the table may be larger than memory.
        runs_modules: Whether `module_output` computes the output of modules.
        device: The GPU whose memory holds the variables; None: they are in the memory of the host.
    """

    is_sharded = False
    in_file = False
    runs_modules = False
    device: str | None = None

    @property
    def splits_gradients(self) -> bool:
        """Whether the gradient that a replica has is that of some rows or columns only."""
        return self.is_sharded

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """Creates the variable that represents a new table, and registers the placement for it.

        Args:
            add: Adds a weight of the given shape to the layer.
            shape: Shape of the whole table, (N, D).
            initializer: Initializer of the whole table.
            name: "layer/weight".
            dtype: "float32" or "bfloat16".

        Returns:
            The variable, which the layer passes to the other methods.
        """
        del name, dtype  # `add` knows them
        return add(shape, initializer)

    def create_lookup(
        self, name: str, specs: Mapping[str, tuple[Any, ...]], options: Mapping[str, Any]
    ) -> Any:
        """Creates the state of a `DynamicLookup` in another process.

        Args:
            name: The name of the layer.
            specs: The shape, the type and the initial value of each variable.
            options: The options of `ops.dynamic_lookup`.

        Returns:
            What looks up rows, see `twml_ops.distribute.parameter_server.dynamic_rows`; None: the
            layer has the variables itself.

        Raises:
            ValueError: Lookups are not possible with this placement.
        """
        del specs, options
        if self is not REPLICATED:
            raise ValueError(
                f"layer {name!r} gives rows to ids in one process or on parameter servers, so its "
                "table cannot be on TPUs or divided over replicas; use hashed ids "
                "(models.HashedIds) there"
            )
        return None

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """Multiplies a batch with a table, as `ops.sparse_linear`.

        Args:
            entries: The batch of this replica, in CSR form.
            table: A variable that `create` has returned.

        Returns:
            float32 [B, D].
        """
        return ops.sparse_linear(*entries, table)

    def module_output(
        self, entries: CsrEntries, table: Any, module: ProductModule
    ) -> tf.Tensor | None:
        """Multiplies a batch with a table and applies a module where the table is.

        Args:
            entries: As of `sparse_linear`.
            table: As of `sparse_linear`.
            module: What is computed of the product.

        Returns:
            float32 [B, C]; None: the layer computes it.
        """
        del entries, table, module
        return None

    def looked_up(self, feature: str) -> tf.Tensor | None:
        """Returns the product of a feature that another system has looked up.

        Args:
            feature: One of the features of the layer's `lookup_tables`.

        Returns:
            float32 [B, D]; None: the layer multiplies its batch with the table.
        """
        del feature
        return None

    def gather_entries(
        self, ids: tf.Tensor, values: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Gathers the entries of all replicas, to update a state of which each has a copy.

        Args:
            ids: Integer [K], of this replica's batch.
            values: float32 [K].

        Returns:
            Ids and values of the batches of all replicas, concatenated in the order of the
            replicas; None without replicas.
        """
        if collectives.num_replicas() == 1:
            return None
        all_ids, all_values = collectives.gather_per_replica([ids, tf.stop_gradient(values)])
        return tf.concat(all_ids, axis=0), tf.concat(all_values, axis=0)

    def reduce_gradient(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Adds up the replicas' sparse gradients of a variable.

        Args:
            gradient: The gradient that this replica has computed.

        Returns:
            The gradient that this replica updates its variable with; ids may repeat.
        """
        return replica_gradients.reduce_gradient(gradient)

    def attach_slots(
        self, table: Any, slots: Sequence[Any], initial_values: Sequence[float]
    ) -> Any:
        """Tells the placement which slots an optimizer has for a table, before each update.

        Args:
            table: A variable that `create` has returned.
            slots: Variables of the optimizer.
            initial_values: Of each slot.

        Returns:
            An operation that must run before the update, or None.
        """
        del table, slots, initial_values  # only a table that is not in memory needs them
        return None

    def whole_shape(self, variable: Any) -> tuple[int, ...]:
        """The shape of the whole of which a variable holds a part.

        Args:
            variable: A variable that `create` has returned, or one of its slots.

        Returns:
            That of the table or of the slot, [N, ...].
        """
        return tuple(variable.shape)

    def read(self, variable: Any) -> tf.Tensor:
        """Reads the whole table.

        Args:
            variable: A variable that `create` has returned, or one of its slots.

        Returns:
            The table or the slot, [N, ...].
        """
        return tf.convert_to_tensor(variable)

    def assign(self, variable: Any, table: Any) -> None:
        """Sets the whole table.

        Args:
            variable: A variable that `create` has returned, or one of its slots.
            table: Its new value, [N, ...].

        Raises:
            ValueError: `table` has another shape. Nothing is changed.
        """
        variable.assign(tf.cast(table, variable.dtype))


REPLICATED = Placement()
"""The default placement: every replica has the whole table."""

_CURRENT: ContextVar[Placement] = ContextVar("placement", default=REPLICATED)


def current_placement() -> Placement:
    """Returns the placement of new tables whose layer does not ask for another.

    Returns:
        The placement of the innermost `placement_scope`, or `REPLICATED` outside of one.
    """
    return _CURRENT.get()


@contextlib.contextmanager
def placement_scope(placement: Placement) -> Iterator[None]:
    """Makes `placement` the current placement in a `with` block, for the running thread.

    Args:
        placement: The placement of tables that are created in the block.

    Yields:
        Nothing.
    """
    token = _CURRENT.set(placement)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def placement_of(variable: Any) -> Placement:
    """Returns the placement of a variable.

    Args:
        variable: A Keras or TensorFlow variable, or what `Placement.create` has returned.

    Returns:
        The placement that `set_placement` has registered for it, or `REPLICATED`.
    """
    # A variable of Keras 3 may have got its value after the placement was registered.
    of_keras: Placement = getattr(variable, _ATTRIBUTE, REPLICATED)
    found: Placement = getattr(tf_variable(variable), _ATTRIBUTE, of_keras)
    return found


def grouped_sparse_linear(batches: Sequence[CsrEntries], tables: Sequence[Any]) -> list[tf.Tensor]:
    """Multiplies several batches, each with its table, by one op if all tables are in this process.

    Args:
        batches: One batch for each table.
        tables: Variables that `Placement.create` has returned.

    Returns:
        One float32 [B, D] for each batch.
    """
    if all(placement_of(t) is REPLICATED for t in tables):
        return ops.grouped_sparse_linear(batches, tables)
    return [placement_of(t).sparse_linear(b, t) for b, t in zip(batches, tables, strict=True)]


def set_placement(variable: Any, placement: Placement) -> None:
    """Registers the placement of a variable.

    Args:
        variable: A Keras or TensorFlow variable, or an object that represents a table.
        placement: Its placement from now on.
    """
    setattr(tf_variable(variable), _ATTRIBUTE, placement)


def check_whole_shape(value: Any, expected: Sequence[int], what: str) -> None:
    """Checks the new value of a whole table or slot before anything is changed.

    Args:
        value: An array or a tensor.
        expected: The shape of the whole.
        what: Its name in the message.

    Raises:
        ValueError: It has another shape.
    """
    if tuple(value.shape) != tuple(expected):
        raise ValueError(
            f"the new value of {what} must have shape {tuple(expected)}, got {tuple(value.shape)}"
        )


def in_replica_group() -> bool:
    """Tells whether the running code is one of several replicas that exchange gradients here.

    Returns:
        True in the replica context of a `tf.distribute.MirroredStrategy` of at least two replicas.
        Other strategies exchange gradients by themselves.
    """
    return collectives.num_replicas() > 1
