"""Gives rows of a table of bounded size to ids of an unbounded space."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops import ops, placement
from twml_ops._batch import parse
from twml_ops._keras import in_stateless_scope, in_symbolic_build, serializable
from twml_ops.layers._arguments import check_positive_integer
from twml_ops.layers._weights import add_table
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable
from twml_ops.ops.dynamic_lookup import HEADER_SIZE, SKETCH_DEPTH, Eviction

_EVICTIONS = ("none", "lru", "lfu", "age")
_MAX_SIGHTINGS = 255


@serializable
class DynamicLookup(tf.keras.layers.Layer):
    """Replaces 64-bit ids by rows of a table of bounded size, without collisions.

    Ids are any 64-bit integers, for example hashes of strings. An id gets a row of its own in
    training, after `min_count` sightings. If all rows are in use, the row of another id is given to
    it. All ids without a row share row 0. In inference rows are only looked up.

    The rows depend on the sequence of the batches only: not on the number of threads, and not on
    other layers. Of the ids of one batch, the one that occurs first gets the first row. The rows
    that a batch uses keep their ids until the next call at least (see `pinned_lookups`).

    `DynamicSparseLinear` is this layer with a table, whose row is initialized again when it gets a
    new id. Use this layer alone where a row may keep its trained weights.

    Sightings of ids without a row are counted by a count-min sketch (Cormode and Muthukrishnan,
    2005, "An improved data stream summary") with four rows of 8-bit counters, so an id may be
    admitted too early because of others. The counters are halved after every `sketch_width` / 2
    sightings (Einziger, Friedman and Manes, 2017, "TinyLFU"), so `min_count` sightings must lie
    within about so many; but not more often than every `min_count` calls, so an id that is in every
    batch is always admitted.

    The state survives `.keras` files, checkpoints and SavedModels. Memory: 24 + 8 to 16 bytes a
    row, and 4 · `sketch_width` bytes. With `HybridTrainer` it is on one parameter server. Replicas
    and TPUs are not supported: `call` or the trainer refuses them. Stock TensorFlow ops, as in
    portable exports, look up rows but give none.

    Args:
        capacity: number of rows, at least 2, with the shared row 0.
        min_count: sightings after which an id gets a row, in [1, 255], default 1.
        eviction: which row is given to a new id if all are in use. "lru", the default: the least
            recently used one. "lfu": the one whose id occurred least often since it got the row;
            of several, the least recently used one. "age": as "lru", but only a row that none of
            the last `max_age` lookups used. "none": new ids share row 0.
        max_age: of "age", number of calls in training, default 0.
        pinned_lookups: rows that one of so many last calls used are not evicted, default 1.
        sketch_width: number of counters of a row of the sketch, a power of two; default: the
            smallest one that is at least 4 · `capacity`. There is no sketch if `min_count` is 1.
        seed: the seed of the hashes; one that is secret if others may choose ids that collide.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        capacity: int,
        min_count: int = 1,
        eviction: Eviction = "lru",
        max_age: int = 0,
        pinned_lookups: int = 1,
        sketch_width: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # values keep float32 under mixed precision
        super().__init__(**kwargs)
        self.capacity = check_positive_integer("capacity", capacity)
        if not 2 <= self.capacity < 1 << 31:
            raise ValueError(f"capacity must be in [2, 2^31), got {capacity}")
        self.min_count = check_positive_integer("min_count", min_count)
        if self.min_count > _MAX_SIGHTINGS:
            raise ValueError(f"min_count must be in [1, {_MAX_SIGHTINGS}], got {min_count}")
        if eviction not in _EVICTIONS:
            raise ValueError(f"eviction must be one of {_EVICTIONS}, got {eviction!r}")
        if int(max_age) != max_age or max_age < 0:
            raise ValueError(f"max_age must be a non-negative integer, got {max_age!r}")
        if sketch_width is not None and (sketch_width < 1 or sketch_width & (sketch_width - 1)):
            raise ValueError(f"sketch_width must be a power of two, got {sketch_width!r}")
        self.eviction = eviction
        self.max_age = int(max_age)
        self.pinned_lookups = check_positive_integer("pinned_lookups", pinned_lookups)
        self.sketch_width = sketch_width
        self.seed = int(seed)
        self.supports_jit = False  # the op cannot be compiled by XLA
        self._remote: Any = None  # what looks up ids if the state is not in this process

    def build(self, input_shape: Any = None) -> None:
        """Creates the state."""
        del input_shape
        rows = (self.capacity,)
        width = self.sketch_width or _power_of_two(4 * self.capacity)
        specs = {
            "keys": (rows, "int64", 0),
            "last_used": (rows, "int64", 0),
            "counts": (rows, "int64", 0),
            "index": ((_power_of_two(2 * self.capacity),), "int32", -1),
            "sketch": ((SKETCH_DEPTH, 0 if self.min_count == 1 else width), "uint8", 0),
            "header": ((HEADER_SIZE,), "int64", 0),
        }
        place = placement.current_placement()
        options = {**self._options(), "pinned": self.pinned_lookups}
        self._remote = place.create_lookup(self.name, specs, options)
        for name, spec in specs.items() if self._remote is None else ():
            setattr(self, f"_{name}", self._add(name, *spec))
        super().build(None)

    def _options(self) -> dict[str, Any]:
        names = ("min_count", "eviction", "max_age", "seed")
        return {name: getattr(self, name) for name in names}

    def _add(self, name: str, shape: tuple[int, ...], dtype: str, value: int) -> Any:
        initializer = tf.keras.initializers.Constant(value)
        return add_table(self, name, shape, initializer, dtype, trainable=False)

    @property
    def num_rows_in_use(self) -> int:
        """Number of rows that have an id, without the shared one."""
        header = self._header if self._remote is None else self._remote.header()
        return int(tf.convert_to_tensor(header)[1])

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Replaces the ids of a batch by rows.

        Args:
            inputs: a batch in any batch form, B rows. The id -1 is padding in the padded form only.
            training: whether the ids are counted and new ones get rows.

        Returns:
            The batch with rows in [0, capacity), in the form of `inputs`.

        Raises:
            ValueError: the input has no batch form, or there are several replicas.
            NotImplementedError: in training, in a graph of version 1, without the op library, or
                within `stateless_call`.
        """
        rows, _, rebuild = self.lookup(inputs, training)
        return rebuild(rows, self.capacity)

    @property
    def num_lookups(self) -> tf.Tensor:
        """Number of calls in training, an int64 scalar."""
        return tf_variable(self._header).read_value()[0]

    def lookup(
        self, inputs: Any, training: Any, updated_at: Any = None
    ) -> tuple[Any, tf.Tensor, Any]:
        """What `call` does, for layers that have tables.

        Args:
            inputs: as of `call`.
            training: as of `call`.
            updated_at: int64 scalar: rows that were used by later lookups than this one, counted by
                `num_lookups`, are not evicted either; None: there is no such limit.

        Returns:
            (the batch in CSR form with rows, the rows int64 [E] that got a new id, a function that
            converts a CSR batch to the form of the inputs).
        """
        training = False if training is None else training
        if training is not False:
            _check_can_train()
        with library.on_host():
            batch, rebuild = parse(inputs, hashes=True)
            if self._remote is not None:
                rows = self._remote.rows(tf.cast(batch.ids, tf.int64), training)
                return batch._replace(ids=rows), tf.zeros([0], tf.int64), rebuild
            if in_symbolic_build():
                return (
                    batch._replace(ids=tf.zeros_like(batch.ids, tf.int64)),
                    tf.zeros([0], tf.int64),
                    rebuild,
                )
            counts = (self._keys, self._last_used, self._counts)
            pinned: Any = self.pinned_lookups
            if updated_at is not None:
                pinned = tf.maximum(self.num_lookups + 1 - updated_at, pinned)
            rows, reset = ops.dynamic_lookup(
                tf.cast(batch.ids, tf.int64),
                (*counts, self._index, self._sketch, self._header),
                training,
                pinned=pinned,
                **self._options(),
            )
        return batch._replace(ids=rows), reset, rebuild

    def save_own_variables(self, store: Any) -> None:
        """Writes the state to a `.keras` or `.weights.h5` file."""
        if self._remote is None:
            super().save_own_variables(store)
            return
        for i, value in enumerate(self._remote.values()):
            store[f"{i}"] = value

    def load_own_variables(self, store: Any) -> None:
        """Reads the state."""
        if self._remote is None:
            super().load_own_variables(store)
        else:
            self._remote.load([store[f"{i}"][...] for i in range(len(store))])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.pop("autocast", None)
        names = ["capacity", "min_count", "eviction", "max_age", "pinned_lookups"]
        return {
            **config,
            **{name: getattr(self, name) for name in [*names, "sketch_width", "seed"]},
        }


def _check_can_train() -> None:
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise ValueError(
            "a DynamicLookup gives rows to ids in one process without replicas, got "
            f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas; use hashed ids "
            "(SparseLinear behind models.HashedIds) with tf.distribute"
        )
    if in_stateless_scope():
        raise NotImplementedError("a DynamicLookup cannot be trained within stateless_call")
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise NotImplementedError("a DynamicLookup cannot be trained in a graph of version 1")


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()
